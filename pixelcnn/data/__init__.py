"""Reading, splitting and batching of images, captions and video."""
