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

from onepass.foundation.errors import UserError
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

# Maps each name imported on first use to the module that defines it, or that it names.
_EXPORTS = {
    "Autoregressive": "onepass.model",
    "Client": "serving",
    "Compared": "distill.losses.terms",
    "FlowStudent": "distill.flow_student",
    "KL": "distill.losses.divergence",
    "Frames": "onepass.networks.conditions",
    "ModelInfo": "onepass.models",
    "Memory": "onepass.networks.conditions",
    "NotCausalError": "onepass.step",
    "OptimizerConfig": "onepass.replicator",
    "PrefixState": "onepass.prefix_state",
    "UnsupportedNetworkError": "onepass.step",
    "aten": "onepass.networks.from_torch.table",
    "check_causal": "onepass.networks.causality",
    "compress": "onepass.compression.arrays",
    "decompress": "onepass.compression.arrays",
    "distill": "distill.any_teacher",
    "evaluate": "onepass.evaluation",
    "export": "onepass.bundles.export",
    "fit": "onepass.training.fit",
    "from_torch": "onepass.networks.from_torch.conversion",
    "incremental": "onepass.step",
    "likelihoods": "onepass.likelihoods",
    "list_models": "onepass.models",
    "load": "onepass.models",
    "load_network": "onepass.networks.from_torch.network",
    "main": "onepass.command.verbs",
    "register": "onepass.samplers",
    "save": "onepass.models",
    "strategies": "onepass.replicator.strategies",
}
__all__ = [*_EXPORTS, "UserError", "__version__"]
follow_torch()  # before a name of the list above imports TensorFlow
__getattr__ = lazy_exports(__name__, _EXPORTS, prefix="")
