"""Batches, losses, callbacks and optimiser state of `fit`."""
