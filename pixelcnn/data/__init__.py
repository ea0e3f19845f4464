"""Images, captions and videos as they are read, split and batched."""
