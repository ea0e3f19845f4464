"""Autoregressive generation on a CPU, compiled by Numba."""

from wavenet.samplers.numba.sampler import (
    NumbaSampler,
    NumbaVocoderSampler,
    as_compiled,
    check_shape,
    cores,
)

__all__ = [
    "NumbaSampler",
    "NumbaVocoderSampler",
    "as_compiled",
    "check_shape",
    "cores",
]
