"""Samplers: functions of (network, distribution, noise, condition, temperature, prompt)."""

import onepass.samplers.cached
import onepass.samplers.fixed_point
import onepass.samplers.naive  # noqa: F401  (they are registered)
from onepass.samplers.cached import cached_chunk
from onepass.samplers.registry import SAMPLERS, find_specialised, methods_of, register
from onepass.samplers.speculative import Draft, speculative

__all__ = [
    "SAMPLERS",
    "Draft",
    "cached_chunk",
    "find_specialised",
    "methods_of",
    "register",
    "speculative",
]
