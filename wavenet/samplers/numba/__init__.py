"""Autoregressive sampling on a CPU, compiled by Numba."""

from wavenet.samplers.numba.sampler import (
    as_compiled,
    check_shape,
)

__all__ = [
    "as_compiled",
    "check_shape",
]
