"""Derive the cached step of any causal network from its graph."""

from autoregressive.incremental.derive import incremental
from autoregressive.incremental.rules import rule
from autoregressive.incremental.streams import NotCausalError, Part, UnsupportedNetworkError

__all__ = ["NotCausalError", "Part", "UnsupportedNetworkError", "incremental", "rule"]
