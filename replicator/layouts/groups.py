"""Tensors that are cut alike: a weight and its optimiser's slots, and those of repeated layers."""

import dataclasses
import math
import re

from .layout import Step
from .partition import Partitioner

_USES_DEPTH = 2  # operations: beyond, the first and the last layer differ from those between


@dataclasses.dataclass(frozen=True)
class Group:
    """Arguments that one decision cuts.

    Attributes:
      places: in call order. shape: of each; of a batch, that of its first input.
      dimensions: that may be cut. num_elements: of all together.
    """

    places: tuple[int, ...]
    shape: tuple[int, ...]
    dimensions: tuple[int, ...]
    num_elements: int


def batch_group(step: Step) -> Group:
    """The inputs of a step, which are cut along their rows."""
    places = tuple(i for i, tensor in enumerate(step.batch) if tensor.shape)
    shared = math.gcd(*(step.batch[i].shape[0] for i in places))
    return Group(places, (shared,), (0,), 0)


def state_groups(step: Step, partitioner: Partitioner) -> list[Group]:
    """What a step captures, the largest group first; scalars are left out.

    A weight and its moments have the same name behind `weights/`, `first/` and so on; layers repeat
    each other where shapes, uses and names, but for their numbers, are the same.
    """
    tied: dict[tuple, list[int]] = {}
    for place, tensor in enumerate(step.arguments):
        if place >= len(step.batch) and tensor.shape:
            name = tensor.name.partition("/")[2] if tensor.name in step.slots else tensor.name
            tied.setdefault((name, tensor.shape, tensor.name in step.slots), []).append(place)
    alike: dict[tuple, list[int]] = {}
    for (name, shape, _), places in tied.items():
        uses = partitioner.uses(_weight(step, places), _USES_DEPTH)
        alike.setdefault((re.sub(r"\d+", "#", name), shape, uses), []).extend(places)
    groups = [
        Group(tuple(places), shape, tuple(range(len(shape))), len(places) * math.prod(shape))
        for (_, shape, _), places in alike.items()
    ]
    return sorted(groups, key=lambda group: -group.num_elements)


def _weight(step: Step, places: list[int]) -> int:
    """Of tied tensors the one that the network reads."""
    named = [i for i in places if step.arguments[i].name.startswith("weights/")]
    return (named or places)[0]
