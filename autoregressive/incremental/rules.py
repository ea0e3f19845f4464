"""The registry of rules: from a TensorFlow operation on a sequence to its part in a step."""

from collections.abc import Callable, Iterable

from tensorflow.python.framework import op_def_registry as registry  # it has no public name

from autoregressive.incremental.streams import Node, Part

Rule = Callable[[Node], Part]

RULES: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule by which a step runs an operation, such as "Conv2D".

    A rule that is registered later replaces an earlier one. Every derived step is compared with its
    network before it is used, so a wrong rule is found.

    Args:
      *types: names of TensorFlow operations, also of those that were loaded from a library.

    Returns:
      A decorator of a function from a `Node`, whose inputs have one axis of time at most, to its
      `Part`. It raises `node.refused(reason)` for what looks ahead, and `node.unsupported(reason)`
      for what it does not support.

    Raises:
      ValueError: TensorFlow has no operation of a name.
    """
    unknown = [each for each in types if not (isinstance(each, str) and registry.get(each))]
    if unknown or not types:
        raise ValueError(
            '`types` must be names of TensorFlow operations, such as "Conv2D", got '
            f"{unknown[0] if unknown else 'none'!r}."
        )

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return add


def types_of(names: str | Iterable[str]) -> frozenset[str]:
    """Return operations listed in a text, separated by spaces, or in sets."""
    return frozenset(names.split() if isinstance(names, str) else names)
