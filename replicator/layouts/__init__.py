"""Layouts of a training step over a mesh of devices, and the search for a good one.

A copy of this folder lies beside an exported run.py: it needs JAX and NumPy only, and its modules
import each other by relative names.
"""
