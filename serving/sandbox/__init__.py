"""Processes that confine the programs of models."""
