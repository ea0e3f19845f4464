"""Reading, splitting and batching of images, captions and videos."""
