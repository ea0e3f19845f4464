"""Processes that confine the models' programs."""
