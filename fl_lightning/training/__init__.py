"""A run under Lightning's trainer: evaluation, processes, checkpoints, what may change on resume."""
