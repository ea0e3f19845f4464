"""Layouts of a training step over a mesh of devices, and the search for a good one.

An exported run.py is accompanied by a copy of this folder: it needs only JAX and NumPy, and its
modules import each other by relative names.
"""
