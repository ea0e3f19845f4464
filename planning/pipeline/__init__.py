"""Pipelines: schedules made of building blocks, their simulation, and their execution."""
