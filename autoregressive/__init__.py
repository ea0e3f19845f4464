"""Any causal network with any distribution: log-probabilities, samples, training, files."""
