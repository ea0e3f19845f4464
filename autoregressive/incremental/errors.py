"""Errors of networks whose step cannot be derived."""


class NotCausalError(ValueError):
    """An output depends on inputs after it, or on the length of the sequence."""


class UnsupportedNetworkError(ValueError):
    """The network may be causal, but no rule derives a step from one of its operations."""
