"""Configurations as JSON values and as flags: written, compared, read back as dataclasses."""

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from replicator.runs.errors import UserError

Config = TypeVar("Config")


def differences(stored, given, path: str) -> list[str]:
    """A phrase for each leaf in which two nested JSON values differ."""
    if isinstance(stored, dict) and isinstance(given, dict):
        return [
            phrase
            for key in sorted(stored.keys() | given.keys())
            for phrase in differences(stored.get(key), given.get(key), f"{path}.{key}")
        ]
    return [] if stored == given else [f"{path} is {stored} there, {given} here"]


def to_json(config) -> dict:
    """A dataclass as nested JSON-able values."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def defaults(config) -> dict:
    """The default of every setting that has one, nested as `to_json` nests the settings."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = defaults(value)
        elif field.default is not dataclasses.MISSING:
            found[field.name] = json.loads(json.dumps(field.default, default=str))
    return found


def completed(stored, given_defaults):
    """Stored settings, with the defaults of those that an earlier version did not have yet."""
    if not (isinstance(stored, dict) and isinstance(given_defaults, dict)):
        return stored
    known = {key: completed(value, given_defaults.get(key)) for key, value in stored.items()}
    return given_defaults | known


def stored_config(kind, stored: dict):
    """A dataclass `kind`, with dataclasses in it, from the content of a config.json.

    A setting with a default that is not there yet, written by an earlier version, takes it; a
    section made by a factory must be there. Raises UserError that says what is wrong in it.
    """
    fields = dataclasses.fields(kind)
    try:
        known = [f.name for f in fields if f.name in stored or f.default is dataclasses.MISSING]
        return dataclass_from(kind, {name: stored[name] for name in known})
    except KeyError as error:
        raise UserError(f"The stored configuration has no {error}.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"The stored configuration is not one of this version: {error}") from error


def checked_config(
    stored: Any,
    path: Path,
    kinds: Sequence[str],
    needed: set[str],
    read: Callable[[dict], Config],
) -> Config:
    """What `read` makes of the config.json of a run or model, once it is known to be one.

    Args:
      stored: its content. path: of the run directory or model folder.
      kinds: of models, one of which it must be of. needed: keys that must be there.

    Raises UserError, naming the path, for another kind, a missing key, or what `read` refuses.
    """
    if not isinstance(stored, dict):
        raise UserError(f"The configuration in {path} must be a JSON object.")
    if stored.get("kind") not in kinds:
        raise UserError(f"{path} holds a {stored.get('kind')}, not a {' or a '.join(kinds)}.")
    missing = needed - stored.keys()
    if missing:
        raise UserError(f"The configuration in {path} has no '{min(missing)}'.")
    try:
        return read(stored)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def dataclass_from(kind, values: dict):
    """A dataclass of JSON values, lists as tuples; TypeError or ValueError for others."""
    kinds = {field.name: field.type for field in dataclasses.fields(kind)}
    return kind(**{name: _from_json(kinds.get(name), value) for name, value in values.items()})


def _from_json(kind, value):
    if isinstance(value, dict) and dataclasses.is_dataclass(kind):
        return dataclass_from(kind, value)
    return tuple(value) if isinstance(value, list) else value


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
