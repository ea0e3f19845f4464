"""What every floor stands on: run directories, checkpoints, files, errors and progress."""
