"""Probability density distillation: fast students, their losses and their training."""
