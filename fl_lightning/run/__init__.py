"""What a fit writes and needs to continue: settings, the record, checkpoints, a warm start, undone steps."""
