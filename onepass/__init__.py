"""Fast inference for autoregressive generative models: train, distil, sample, export and serve."""

from onepass.command import main

__version__ = "0.2.0"

__all__ = ["__version__", "main"]
