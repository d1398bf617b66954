"""Sweeps: many fits of one config, with other values and seeds, and the table of what they came to."""
