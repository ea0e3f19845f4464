"""The cached step of any causal network, derived from its graph."""

from autoregressive.incremental.derive import Incremental, incremental
from autoregressive.incremental.streams import NotCausalError, UnsupportedNetworkError

__all__ = ["Incremental", "NotCausalError", "UnsupportedNetworkError", "incremental"]
