"""The registry of rules: from a TensorFlow operation on a sequence to its part in a step."""

from collections.abc import Callable, Iterable

from autoregressive.incremental.streams import Node, Part

Rule = Callable[[Node], Part]

RULES: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operations, such as "Conv2D".

    Args:
      *types: names of TensorFlow operations.

    Returns:
      A decorator of a function from a `Node`, whose inputs have one axis of time at most, to its
      part. It raises NotCausalError or UnsupportedNetworkError for what it does not support.
    """

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return add


def types_of(names: str | Iterable[str]) -> frozenset[str]:
    """Return operations listed in a text, separated by spaces, or in sets."""
    return frozenset(names.split() if isinstance(names, str) else names)
