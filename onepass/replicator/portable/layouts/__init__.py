"""Layouts of a training step over a mesh of devices, and the search for a good one.

A copy of this folder accompanies an exported run.py, so it needs only JAX and NumPy.
"""
