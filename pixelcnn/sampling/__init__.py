"""Samplers of the image models, and image files with samples."""
