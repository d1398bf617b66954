"""Sweeps: many fits of one config, with different values and seeds, and the table of their results."""
