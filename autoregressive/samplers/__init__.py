"""Samplers: functions of (network, distribution, noise, condition, temperature)."""

from autoregressive.samplers.cached import cached, cached_chunk
from autoregressive.samplers.fixed_point import fixed_point
from autoregressive.samplers.naive import naive
from autoregressive.samplers.registry import SAMPLERS, register, specialised
from autoregressive.samplers.speculative import Draft, SteppedDraft, speculative

__all__ = [
    "SAMPLERS",
    "Draft",
    "SteppedDraft",
    "cached",
    "cached_chunk",
    "fixed_point",
    "naive",
    "register",
    "specialised",
    "speculative",
]
