"""Evaluation of models: the global one, clients' personal ones, and those tuned on a client's data."""
