"""Fast inference for autoregressive generative models: train, distil, sample, export and serve.

import onepass

model = onepass.load("shipped-digits")
images = model.generate(7, seed=1, num=4)  # uint8 [4, 32, 32, 3]

model = onepass.Autoregressive(network, onepass.likelihoods.LogisticMixture())  # a network of yours
onepass.fit(model, waveforms, steps=2000)
"""

import importlib
from typing import TYPE_CHECKING, Any

from onepass.command import main
from onepass.models import ModelInfo, list_models, load

if TYPE_CHECKING:
    import likelihoods as likelihoods
    from autoregressive.causality import check_causal as check_causal
    from autoregressive.fit import fit as fit
    from autoregressive.incremental import incremental as incremental
    from autoregressive.model import Autoregressive as Autoregressive
    from distill.any_teacher import distill as distill
    from distill.model_store import save as save
    from onepass.array_compression import compress as compress
    from onepass.array_compression import decompress as decompress
    from serving.bundles.own_export import export as export

__version__ = "0.2.0"

# What needs TensorFlow, and the module that has it.
_EXPORTS = {
    "Autoregressive": "autoregressive.model",
    "check_causal": "autoregressive.causality",
    "compress": "onepass.array_compression",
    "decompress": "onepass.array_compression",
    "distill": "distill.any_teacher",
    "export": "serving.bundles.own_export",
    "fit": "autoregressive.fit",
    "incremental": "autoregressive.incremental",
    "save": "distill.model_store",
}
__all__ = [
    "Autoregressive",
    "ModelInfo",
    "__version__",
    "check_causal",
    "compress",
    "decompress",
    "distill",
    "export",
    "fit",
    "incremental",
    "likelihoods",
    "list_models",
    "load",
    "main",
    "save",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it (PEP 562)."""
    if name == "likelihoods":
        return importlib.import_module(name)
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
