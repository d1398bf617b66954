"""Learners for one global model with classes that arrive task by task, one file each."""
