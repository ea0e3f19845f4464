"""Models that show the Replicator at work, one file each; see docs/examples.md."""
