"""Tensors that are cut alike: a weight and its optimiser's slots, and those of repeated layers."""

import dataclasses
import math
import re

from .layout import Step
from .partition import Partitioner

_USES_DEPTH = 2  # operations; at a greater depth the first and last layers differ from the others


@dataclasses.dataclass(frozen=True)
class Group:
    """Arguments that are cut by one decision.

    Attributes:
      indices: of the arguments, in call order.
      shape: of each; for a batch, the number of rows that all inputs can be divided by.
      dimensions: those that may be cut.
      num_elements: of all arguments together.
    """

    indices: tuple[int, ...]
    shape: tuple[int, ...]
    dimensions: tuple[int, ...]
    num_elements: int


def batch_group(step: Step) -> Group:
    """Return the inputs of a step, which are cut along their rows."""
    indices = tuple(i for i, tensor in enumerate(step.batch) if tensor.shape)
    shared = math.gcd(*(step.batch[i].shape[0] for i in indices))
    return Group(indices, (shared,), (0,), 0)


def state_groups(step: Step, partitioner: Partitioner) -> list[Group]:
    """Return the captured arguments in groups, the largest first, without scalars.

    A weight and its moments have the same name after `weights/`, `first/` and so on; layers repeat
    each other if shapes, uses and names, except for numbers, are equal.
    """
    tied: dict[tuple, list[int]] = {}
    for index, tensor in enumerate(step.arguments):
        if index >= len(step.batch) and tensor.shape:
            name = tensor.name.partition("/")[2] if tensor.name in step.slots else tensor.name
            tied.setdefault((name, tensor.shape, tensor.name in step.slots), []).append(index)
    alike: dict[tuple, list[int]] = {}
    for (name, shape, _), indices in tied.items():
        uses = partitioner.uses(_weight(step, indices), _USES_DEPTH)
        alike.setdefault((re.sub(r"\d+", "#", name), shape, uses), []).extend(indices)
    groups = [
        Group(tuple(indices), shape, tuple(range(len(shape))), len(indices) * math.prod(shape))
        for (_, shape, _), indices in alike.items()
    ]
    return sorted(groups, key=lambda group: -group.num_elements)


def _weight(step: Step, indices: list[int]) -> int:
    """Return the tensor that the network reads among tied ones."""
    named = [i for i in indices if step.arguments[i].name.startswith("weights/")]
    return (named or indices)[0]
