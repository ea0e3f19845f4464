"""Predicted cost of a training step on several devices, from its cost on one."""
