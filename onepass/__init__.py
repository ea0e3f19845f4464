"""Fast inference for autoregressive generative models: train, distil, sample, export and serve.

import onepass

model = onepass.load("shipped-digits")
images = model.generate(7, seed=1, num=4)  # uint8 [4, 32, 32, 3]

model = onepass.Autoregressive(network, onepass.likelihoods.LogisticMixture())  # your network
onepass.fit(model, waveforms, steps=2000)

docs/reference/onepass.md documents every name. Names that need TensorFlow are imported on first
use, so help texts appear without a delay.
"""

from typing import TYPE_CHECKING

from autoregressive.torch_networks.triton_order import follow_torch
from foundation.errors import UserError
from foundation.lazy_exports import lazy_exports
from onepass.command import main
from onepass.models import ModelInfo as ModelInfo
from onepass.models import list_models, load

if TYPE_CHECKING:
    import likelihoods as likelihoods
    from autoregressive.causality import check_causal as check_causal
    from autoregressive.condition_specs import Frames as Frames
    from autoregressive.condition_specs import Memory as Memory
    from autoregressive.fit import fit as fit
    from autoregressive.incremental import NotCausalError as NotCausalError
    from autoregressive.incremental import UnsupportedNetworkError as UnsupportedNetworkError
    from autoregressive.incremental import incremental as incremental
    from autoregressive.model import Autoregressive as Autoregressive
    from autoregressive.samplers import register as register
    from autoregressive.torch_networks.conversion import from_torch as from_torch
    from autoregressive.torch_networks.network import load_network as load_network
    from autoregressive.torch_networks.table import aten as aten
    from distill.any_teacher import distill as distill
    from distill.flow_student import FlowStudent as FlowStudent
    from distill.losses.divergence import KL as KL
    from distill.losses.terms import Compared as Compared
    from distill.model_store import save as save
    from onepass.array_compression import compress as compress
    from onepass.array_compression import decompress as decompress
    from onepass.evaluation import evaluate as evaluate
    from replicator import OptimizerConfig as OptimizerConfig
    from replicator import strategies as strategies
    from serving import Client as Client
    from serving.bundles.own_export import export as export

__version__ = "0.2.0"

# Maps each name imported on first use to the module that defines it, or that it names.
_EXPORTS = {
    "Autoregressive": "autoregressive.model",
    "Client": "serving",
    "Compared": "distill.losses.terms",
    "FlowStudent": "distill.flow_student",
    "KL": "distill.losses.divergence",
    "Frames": "autoregressive.condition_specs",
    "Memory": "autoregressive.condition_specs",
    "NotCausalError": "autoregressive.incremental",
    "OptimizerConfig": "replicator",
    "UnsupportedNetworkError": "autoregressive.incremental",
    "aten": "autoregressive.torch_networks.table",
    "check_causal": "autoregressive.causality",
    "compress": "onepass.array_compression",
    "decompress": "onepass.array_compression",
    "distill": "distill.any_teacher",
    "evaluate": "onepass.evaluation",
    "export": "serving.bundles.own_export",
    "fit": "autoregressive.fit",
    "from_torch": "autoregressive.torch_networks.conversion",
    "incremental": "autoregressive.incremental",
    "likelihoods": "likelihoods",
    "load_network": "autoregressive.torch_networks.network",
    "register": "autoregressive.samplers",
    "save": "distill.model_store",
    "strategies": "replicator.strategies",
}
__all__ = [
    "KL",
    "Autoregressive",
    "Client",
    "Compared",
    "FlowStudent",
    "Frames",
    "Memory",
    "NotCausalError",
    "OptimizerConfig",
    "UnsupportedNetworkError",
    "UserError",
    "__version__",
    "aten",
    "check_causal",
    "compress",
    "decompress",
    "distill",
    "evaluate",
    "export",
    "fit",
    "from_torch",
    "incremental",
    "likelihoods",
    "list_models",
    "load",
    "load_network",
    "main",
    "register",
    "save",
    "strategies",
]


follow_torch()  # before a name of the list above imports TensorFlow
__getattr__ = lazy_exports(__name__, _EXPORTS, prefix="")
