"""Distributions over symbols, parameterised by a network's output, and codecs for elements.

A distribution implements the protocol `Distribution`: `log_prob`, `sample`, `mode`, `noise`. A
codec implements `Codec`: `encode`, `decode`, `scale`. The names below are imported on first access,
so a configuration can import `onepass.likelihoods.registry` without TensorFlow.
"""

from typing import TYPE_CHECKING

from onepass.foundation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from onepass.likelihoods.codec import Codec as Codec
    from onepass.likelihoods.codec import Integers as Integers
    from onepass.likelihoods.codec import Linear as Linear
    from onepass.likelihoods.codec import MuLaw as MuLaw
    from onepass.likelihoods.codec import Reals as Reals
    from onepass.likelihoods.distribution import Bernoulli as Bernoulli
    from onepass.likelihoods.distribution import Categorical as Categorical
    from onepass.likelihoods.distribution import Distribution as Distribution
    from onepass.likelihoods.distribution import Tabulated as Tabulated
    from onepass.likelihoods.distribution import bits_per_sample as bits_per_sample
    from onepass.likelihoods.gaussian import Gaussian as Gaussian
    from onepass.likelihoods.mixture import GaussianMixture as GaussianMixture
    from onepass.likelihoods.mixture import LogisticMixture as LogisticMixture
    from onepass.likelihoods.mixture import PixelMixture as PixelMixture
    from onepass.likelihoods.tfp import FromTFP as FromTFP

_MODULES = {
    "codec": ("Codec", "Integers", "Linear", "MuLaw", "Reals"),
    "distribution": ("Bernoulli", "Categorical", "Distribution", "Tabulated", "bits_per_sample"),
    "gaussian": ("Gaussian",),
    "mixture": ("GaussianMixture", "LogisticMixture", "PixelMixture"),
    "tfp": ("FromTFP",),
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_EXPORTS)
__getattr__ = lazy_exports(__name__, _EXPORTS)
