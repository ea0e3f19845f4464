"""Samplers: functions of (network, distribution, noise, condition, temperature)."""

from autoregressive.samplers.cached import cached_chunk
from autoregressive.samplers.registry import SAMPLERS, register, specialised

__all__ = [
    "SAMPLERS",
    "cached_chunk",
    "register",
    "specialised",
]
