"""Samplers of the image models, and image files that show their samples."""
