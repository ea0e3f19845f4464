"""What a network's output means: distributions over integer levels, and the noise to sample them.

Each likelihood follows `Likelihood`: `log_prob`, `sample`, `mode`, `noise`, `encode`, `decode`. The
names below are imported when they are first asked for: a configuration needs `likelihoods.limits`
alone, without TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from likelihoods.categorical import Categorical as Categorical
    from likelihoods.gaussian import Gaussian as Gaussian
    from likelihoods.logistic import LogisticMixture as LogisticMixture
    from likelihoods.pixels import PixelMixture as PixelMixture
    from likelihoods.protocol import Likelihood as Likelihood
    from likelihoods.protocol import bits_per_sample as bits_per_sample

_PLACES = {
    "Categorical": "categorical",
    "Gaussian": "gaussian",
    "Likelihood": "protocol",
    "LogisticMixture": "logistic",
    "PixelMixture": "pixels",
    "bits_per_sample": "protocol",
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
