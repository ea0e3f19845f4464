"""The flags of a command line that turn a preset into another configuration."""

import dataclasses
import shlex
from collections.abc import Iterator


def changed_flags(preset, given) -> str:
    """`--section.field value` for every setting in which a configuration differs from a preset's.

    Args:
      preset, given: dataclasses of one kind, with dataclasses in them.

    Returns "" for the preset itself, else the flags with a space before each.
    """
    return "".join(f" --{name} {value}" for name, value in _changes(preset, given, ""))


def _changes(preset, given, prefix: str) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(preset):
        before, after = getattr(preset, field.name), getattr(given, field.name)
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(before):
            yield from _changes(before, after, name + ".")
        elif before != after:
            values = after if isinstance(after, tuple) else (after,)
            yield name, " ".join(shlex.quote(str(value)) for value in values)
