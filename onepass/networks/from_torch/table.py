"""The table of rules, which say how TensorFlow computes each operation of an exported graph."""

from collections.abc import Callable
from typing import Any

RULES: dict[str, Callable[..., Any]] = {}
# Python's operators on sizes, which are integers or scalar tensors.
SIZES = "py."


def aten(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the rule for operations of PyTorch.

    A rule that is registered later replaces an earlier one.

    Args:
      *names: names of operations: "conv1d" for all overloads of `aten.conv1d`, "max.dim" for one,
        "mylib.smooth" for an operation of `torch.library`.

    Returns:
      A decorator for a function of the operation's arguments, in PyTorch's order: tensors of
      TensorFlow, numbers, lists and dtypes of TensorFlow. It returns a tensor or a list of them.

    Raises:
      ValueError: a name is not a string, or there is none.
    """
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f'`names` must be names of operations, such as "conv1d", got {names}.')

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def rule_for(operation: str) -> Callable[..., Any] | None:
    """Return the rule for an operation, such as "add.Tensor": its own or that of "add"; or None."""
    plain = operation.removesuffix(".default")
    return RULES.get(plain) or RULES.get(plain.rpartition(".")[0])
