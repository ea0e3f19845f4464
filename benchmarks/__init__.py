"""Side-by-side measurements of speed and quality, each against a named alternative."""
