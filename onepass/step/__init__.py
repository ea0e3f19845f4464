"""Derive the cached step of any causal network from its graph."""

from onepass.step.derive import incremental
from onepass.step.rules import rule
from onepass.step.streams import NotCausalError, Part, UnsupportedNetworkError

__all__ = ["NotCausalError", "Part", "UnsupportedNetworkError", "incremental", "rule"]
