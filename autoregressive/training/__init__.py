"""Batches and optimiser state of `fit`."""
