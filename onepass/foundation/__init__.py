"""Foundations of all packages: run directories, checkpoints, files, errors and progress."""
