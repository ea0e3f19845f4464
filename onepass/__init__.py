"""Fast inference for autoregressive generative models: train, distil, sample, export and serve.

import onepass

model = onepass.load("shipped-digits")
images = model.generate(7, seed=1, num=4)  # uint8 [4, 32, 32, 3]
"""

from onepass.command import main
from onepass.models import ModelInfo, list_models, load

__version__ = "0.2.0"

__all__ = ["ModelInfo", "__version__", "list_models", "load", "main"]
