"""A training run: its state, its step and its loop."""
