"""Training data: audio files, folders with metadata, prepared corpora and random clips."""
