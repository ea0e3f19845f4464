"""What `fit` trains on: batches, and the state of an optimiser."""
