"""Where clients' states lie, and checkpoints."""
