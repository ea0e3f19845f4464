"""Losses of distillation: divergences, spectra, features, and how they are combined."""
