"""Probability density distillation: the fast students, their losses and their training."""
