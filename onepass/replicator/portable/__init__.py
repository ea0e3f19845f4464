"""Export training steps and samplers as StableHLO for machines without TensorFlow."""
