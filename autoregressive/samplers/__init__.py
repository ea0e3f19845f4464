"""Samplers: functions of (network, distribution, noise, condition, temperature)."""

from autoregressive.samplers.cached import cached_chunk
from autoregressive.samplers.fixed_point import fixed_point
from autoregressive.samplers.naive import naive
from autoregressive.samplers.registry import SAMPLERS, methods_of, register, specialised
from autoregressive.samplers.speculative import Draft, SteppedDraft, speculative

__all__ = [
    "SAMPLERS",
    "Draft",
    "SteppedDraft",
    "cached_chunk",
    "fixed_point",
    "methods_of",
    "naive",
    "register",
    "specialised",
    "speculative",
]
