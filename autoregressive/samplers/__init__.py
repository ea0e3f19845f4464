"""Samplers: functions of (network, distribution, noise, condition, temperature)."""

from autoregressive.samplers.cached import cached_chunk
from autoregressive.samplers.registry import SAMPLERS, register, specialised
from autoregressive.samplers.speculative import Draft, SteppedDraft, speculative

__all__ = [
    "SAMPLERS",
    "Draft",
    "SteppedDraft",
    "cached_chunk",
    "register",
    "specialised",
    "speculative",
]
