"""Lossless codes by exact conditionals: odds, their rounding, range-coded streams and the file.

It knows no network: what has conditionals brings them as distributions of its elements.
"""
