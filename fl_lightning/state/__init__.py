"""Storage of clients' states, and checkpoints."""
