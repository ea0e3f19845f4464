"""Samplers: functions of (network, distribution, noise, condition, temperature, prompt)."""

import autoregressive.samplers.cached
import autoregressive.samplers.fixed_point
import autoregressive.samplers.naive  # noqa: F401  (they are registered, in this order)
from autoregressive.samplers.cached import cached_chunk
from autoregressive.samplers.registry import SAMPLERS, methods_of, register, specialised
from autoregressive.samplers.speculative import Draft, SteppedDraft, speculative

__all__ = [
    "SAMPLERS",
    "Draft",
    "SteppedDraft",
    "cached_chunk",
    "methods_of",
    "register",
    "specialised",
    "speculative",
]
