"""Configuration dataclasses: rules for their fields, and their JSON values and flags."""

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from onepass.foundation.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def choices(names: Callable[[], Iterable[str]]) -> Any:
    """Return what `Annotated[str, ...]` needs for one of `names()`, read at every command line."""
    import tyro  # not for every command

    def kind() -> Any:
        return Literal[tuple(names())]

    return tyro.conf.arg(
        constructor_factory=kind,
        help_behavior_hint=lambda default: "(default: " + default.strip("[']") + ")",
    )


Config = TypeVar("Config")
Section = TypeVar("Section", bound="DataclassInstance")


def differences(stored: Any, given: Any, path: str) -> list[str]:
    """Return a phrase for each leaf at which two nested JSON values differ."""
    if isinstance(stored, dict) and isinstance(given, dict):
        return [
            phrase
            for key in sorted(stored.keys() | given.keys())
            for phrase in differences(stored.get(key), given.get(key), f"{path}.{key}")
        ]
    return [] if stored == given else [f"{path} is {stored} there, {given} here"]


def to_json(config: Any) -> dict[str, Any]:
    """Return a dataclass as nested JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def defaults(config: Any) -> dict[str, Any]:
    """Return the default of every setting that has one, nested like the result of `to_json`."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = defaults(value)
        elif field.default is not dataclasses.MISSING:
            found[field.name] = json.loads(json.dumps(field.default, default=str))
    return found


def complete_settings(stored: Any, defaults: Any) -> Any:
    """Return stored settings, with defaults for those that are missing."""
    if not (isinstance(stored, dict) and isinstance(defaults, dict)):
        return stored
    return defaults | {
        key: complete_settings(value, defaults.get(key)) for key, value in stored.items()
    }


def stored_config(kind: type[Section], stored: dict[str, Any]) -> Section:
    """Create a dataclass `kind`, with nested dataclasses, from the contents of a config.json.

    Top-level settings that are missing get their defaults, but a field with a default factory must
    be present.
    """
    fields = dataclasses.fields(kind)
    try:
        known = [f.name for f in fields if f.name in stored or f.default is dataclasses.MISSING]
        return dataclass_from(kind, {name: stored[name] for name in known})
    except KeyError as error:
        raise UserError(f"The stored configuration has no {error}.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"The stored configuration does not fit this version: {error}") from error


def check_config(
    stored: Any,
    path: Path,
    kinds: Sequence[str],
    needed: set[str],
    read: Callable[[dict], Config],
) -> Config:
    """Check the config.json of a run or model, and return the result of `read` for it."""
    if not isinstance(stored, dict):
        raise UserError(f"The configuration in {path} must be a JSON object.")
    if stored.get("kind") not in kinds:
        raise UserError(f"{path} holds a {stored.get('kind')}, expected a {' or a '.join(kinds)}.")
    missing = needed - stored.keys()
    if missing:
        raise UserError(f"The configuration in {path} has no '{min(missing)}'.")
    try:
        return read(stored)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def dataclass_from(kind: type[Section], values: dict[str, Any]) -> Section:
    """Create a dataclass from JSON values; TypeError for a wrong name, ValueError for a value."""
    kinds = {field.name: field.type for field in dataclasses.fields(kind)}
    return kind(**{name: _from_json(kinds.get(name), value) for name, value in values.items()})


def _from_json(kind: Any, value: Any) -> Any:
    if isinstance(value, dict) and dataclasses.is_dataclass(kind):
        return dataclass_from(cast("type[DataclassInstance]", kind), value)
    return tuple(value) if isinstance(value, list) else value


def changed_flags(preset: Any, given: Any) -> str:
    """Return ` --section.field value` for every setting of `given` that differs from the preset."""
    return "".join(f" --{name} {value}" for name, value in _changes(preset, given, ""))


def _changes(preset: Any, given: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(preset):
        before, after = getattr(preset, field.name), getattr(given, field.name)
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(before):
            yield from _changes(before, after, name + ".")
        elif before != after:
            values = after if isinstance(after, tuple) else (after,)
            yield name, " ".join(shlex.quote(str(value)) for value in values)
