"""The components behind all protocols: model registry, batching, streams, limits, tokens."""
