"""Lossless codes by exact conditionals: odds, rounding, range-coded streams and the file.

It is independent of networks: models provide their conditionals as distributions of elements.
"""
