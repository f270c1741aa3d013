"""What every command takes and does, one file an experiment."""
