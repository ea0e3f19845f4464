"""Losses of distillation: divergences, spectra, features, and their combination."""
