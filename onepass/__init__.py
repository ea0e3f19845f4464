"""Fast inference for autoregressive generative models: train, distil, sample, export and serve.

import onepass

model = onepass.load("shipped-digits")
images = model.sample(4, seed=1, condition=7)  # uint8 [4, 32, 32, 3]

model = onepass.Autoregressive(network, onepass.likelihoods.LogisticMixture())  # your network
onepass.fit(model, waveforms, steps=2000)

docs/reference/onepass.md documents every name. Names that need TensorFlow are imported on first
use, so help texts appear without a delay.
"""

from typing import TYPE_CHECKING

from onepass.foundation.lazy_exports import lazy_exports
from onepass.networks.from_torch.triton_order import follow_torch

if TYPE_CHECKING:
    from distill.any_teacher import distill as distill
    from distill.flow_student import FlowStudent as FlowStudent
    from distill.losses.divergence import KL as KL
    from distill.losses.terms import Compared as Compared
    from onepass import likelihoods as likelihoods
    from onepass.bundles.export import export as export
    from onepass.command.verbs import main as main
    from onepass.compression.arrays import compress as compress
    from onepass.compression.arrays import decompress as decompress
    from onepass.evaluation import evaluate as evaluate
    from onepass.foundation.rules import UserError as UserError
    from onepass.model import Autoregressive as Autoregressive
    from onepass.models import ModelInfo as ModelInfo
    from onepass.models import list_models as list_models
    from onepass.models import load as load
    from onepass.models import save as save
    from onepass.networks.causality import check_causal as check_causal
    from onepass.networks.conditions import Frames as Frames
    from onepass.networks.conditions import Memory as Memory
    from onepass.networks.from_torch.conversion import from_torch as from_torch
    from onepass.networks.from_torch.network import load_network as load_network
    from onepass.networks.from_torch.table import aten as aten
    from onepass.prefix_state import PrefixState as PrefixState
    from onepass.replicator import OptimizerConfig as OptimizerConfig
    from onepass.replicator import strategies as strategies
    from onepass.samplers import register as register
    from onepass.step import NotCausalError as NotCausalError
    from onepass.step import UnsupportedNetworkError as UnsupportedNetworkError
    from onepass.step import incremental as incremental
    from onepass.training.fit import fit as fit
    from serving import Client as Client

__version__ = "0.2.0"

# The names imported on first use, by the module that defines them, or that the name stands for.
_MODULES = {
    "distill.any_teacher": ("distill",),
    "distill.flow_student": ("FlowStudent",),
    "distill.losses.divergence": ("KL",),
    "distill.losses.terms": ("Compared",),
    "onepass.bundles.export": ("export",),
    "onepass.command.verbs": ("main",),
    "onepass.compression.arrays": ("compress", "decompress"),
    "onepass.evaluation": ("evaluate",),
    "onepass.foundation.rules": ("UserError",),
    "onepass.likelihoods": ("likelihoods",),
    "onepass.model": ("Autoregressive",),
    "onepass.models": ("ModelInfo", "list_models", "load", "save"),
    "onepass.networks.causality": ("check_causal",),
    "onepass.networks.conditions": ("Frames", "Memory"),
    "onepass.networks.from_torch.conversion": ("from_torch",),
    "onepass.networks.from_torch.network": ("load_network",),
    "onepass.networks.from_torch.table": ("aten",),
    "onepass.prefix_state": ("PrefixState",),
    "onepass.replicator": ("OptimizerConfig",),
    "onepass.replicator.strategies": ("strategies",),
    "onepass.samplers": ("register",),
    "onepass.step": ("NotCausalError", "UnsupportedNetworkError", "incremental"),
    "onepass.training.fit": ("fit",),
    "serving": ("Client",),
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [*_EXPORTS, "__version__"]
follow_torch()  # before a name of the list above imports TensorFlow
__getattr__ = lazy_exports(__name__, _EXPORTS, prefix="")
