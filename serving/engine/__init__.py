"""Components that all protocols share: model registry, batching, streams, limits, tokens."""
