"""Run directories, checkpoints, model folders, metrics and progress."""
