"""Measures of samples of image models."""
