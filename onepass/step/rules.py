"""The registry of rules, which determine how a step runs each TensorFlow operation."""

from collections.abc import Callable

from tensorflow.python.framework import op_def_registry as registry  # it has no public name

from onepass.step.streams import Node, Part

Rule = Callable[[Node], Part]

RULES: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule by which a step runs an operation, such as "Conv2D".

    A rule that is registered later replaces an earlier one. Every derived step is compared with its
    network before it is used, which exposes wrong rules.

    Args:
      *types: names of TensorFlow operations, including those loaded from a library.

    Returns:
      A decorator for a function from a `Node`, whose inputs have at most one time axis, to its
      `Part`. The function raises `node.unsupported_error(reason)` if the rule does not support the
      operation, for example because it looks ahead.

    Raises:
      ValueError: TensorFlow has no operation of one of the names.
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
