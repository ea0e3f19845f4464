"""The dev split in two halves, by name.

All choices during development (a checkpoint, a setting) are made on one half, and the reported
results come from the other.
"""

from collections.abc import Sequence
from typing import Literal, get_args

DevPart = Literal["choose", "report", "dev"]


def dev_part(items: Sequence[dict], part: DevPart) -> list[dict]:
    """Return the items, each with a "name" and sorted by it, that belong to a part of dev.

    "choose" takes the second, fourth, ... item and "report" the others; "dev" takes all. A single
    item is in every part.

    Raises:
      ValueError: the part is unknown.
    """
    if part not in get_args(DevPart):
        raise ValueError(f"`part` must be one of {get_args(DevPart)}, got {part!r}.")
    ordered = sorted(items, key=lambda item: item["name"])
    if part == "dev" or len(ordered) < 2:
        return ordered
    return ordered[1::2] if part == "choose" else ordered[0::2]
