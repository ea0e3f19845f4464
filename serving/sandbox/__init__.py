"""Confined processes that run the programs of models."""
