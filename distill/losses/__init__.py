"""Losses for distillation: divergences, spectra, features, and their combination."""
