"""What a fit leaves behind and needs to go on: settings, the record, checkpoints, a warm start, undone steps."""
