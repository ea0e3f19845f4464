"""Autoregressive generation on a CPU, compiled by Numba."""

from wavenet.samplers.numba.sampler import (
    NumbaSampler,
    NumbaVocoderSampler,
    as_compiled,
    available_cores,
    check_shape,
)

__all__ = [
    "NumbaSampler",
    "NumbaVocoderSampler",
    "as_compiled",
    "available_cores",
    "check_shape",
]
