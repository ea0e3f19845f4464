"""Samplers: functions of (network, distribution, noise, condition, temperature, prompt)."""

import onepass.samplers.fixed_point
import onepass.samplers.sequential  # noqa: F401  (they are registered)
from onepass.samplers.registry import SAMPLERS, find_specialised, methods_of, register
from onepass.samplers.sequential import cached_chunk
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
