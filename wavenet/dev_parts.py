"""Division of the dev split into two halves.

Checkpoints and settings are selected on one half, and results are reported on the other.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from onepass.foundation.rules import must_be

DevPart = Literal["choose", "report", "dev"]


def dev_part(items: Sequence[dict], part: DevPart) -> list[dict]:
    """Return a part's items, by name: "choose" has every second, "report" the others, "dev" all.

    A single item belongs to every part.
    """
    if part not in get_args(DevPart):
        raise ValueError(must_be("part", f"one of {get_args(DevPart)}", repr(part)))
    ordered = sorted(items, key=lambda item: item["name"])
    if part == "dev" or len(ordered) < 2:
        return ordered
    return ordered[1::2] if part == "choose" else ordered[0::2]
