"""How a cohort runs: one client after another, many side by side, or in compiled steps."""
