"""The cached step of any causal network, derived from its graph."""

from autoregressive.incremental.derive import incremental
from autoregressive.incremental.streams import NotCausalError, UnsupportedNetworkError

__all__ = ["NotCausalError", "UnsupportedNetworkError", "incremental"]
