"""Example models that use the Replicator, one per file; see docs/examples.md."""
