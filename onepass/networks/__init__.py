"""A stranger's network: its specs, conditions, elements and lengths, and whether it is causal."""
