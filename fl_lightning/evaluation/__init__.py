"""How good models are: the global one, clients' personal ones, and those tuned on a client's data."""
