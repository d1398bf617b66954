"""Where clients' states lie, and files that are there whole or not at all."""
