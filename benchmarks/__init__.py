"""Speed of fl-lightning against a hand-written loop and against the field: ``python -m benchmarks``."""
