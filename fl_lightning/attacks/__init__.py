"""What an observer recovers from the updates that clients send."""
