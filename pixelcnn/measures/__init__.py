"""Measures of image models: lossless codecs for comparison, and the quality of samples."""
