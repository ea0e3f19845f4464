"""What runs behind every protocol: the model registry, batching, streams, limits, tokens."""
