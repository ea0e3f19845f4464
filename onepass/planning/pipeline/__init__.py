"""Pipelines: schedules made of building blocks, and their simulation and execution."""
