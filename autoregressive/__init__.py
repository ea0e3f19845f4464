"""Models made of any causal network and any distribution: density, sampling, training, storage."""
