"""Dataclasses of settings: as keyword options of a function, JSON values and flags."""

import dataclasses
import difflib
import functools
import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

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

    Missing top-level settings get their defaults, unless a factory makes those.
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
    stored: Any, path: Path, kinds: Sequence[str], needed: set[str], read: Callable[[dict], Config]
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


def changed_flags(preset: Any, given: Any, prefix: str = " --") -> str:
    """Return ` --section.field value` for every setting of `given` that differs from the preset."""
    flags = ""
    for field in dataclasses.fields(preset):
        before, after = getattr(preset, field.name), getattr(given, field.name)
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(before):
            flags += changed_flags(before, after, f"{name}.")
        elif before != after:
            values = after if isinstance(after, tuple) else (after,)
            flags += f"{name} {shlex.join(map(str, values))}"
    return flags


P = ParamSpec("P")
R = TypeVar("R")


def takes(options: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function whose `**options` are the fields of a dataclass.

    The signature and docstring list the fields, except those that the function names itself.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = {each.name for each in own}
        fields = [field for field in dataclasses.fields(options) if field.name not in named]
        known = [*named, *(field.name for field in fields)]

        @functools.wraps(function)
        def check_and_call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs.keys() - set(known):
                close = difflib.get_close_matches(name, known, 1)
                meant = f" Did you mean {close[0]!r}?" if close else ""
                raise TypeError(f"{function.__name__}() has no argument {name!r}.{meant}")
            return function(*args, **kwargs)

        known_fields, kind = inspect.signature(options).parameters, inspect.Parameter.KEYWORD_ONLY
        more = [known_fields[field.name].replace(kind=kind) for field in fields]
        check_and_call.__doc__ = _merge_docstrings(function, options)
        check_and_call.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return check_and_call

    return decorate


def entries_of(options: type) -> dict[str, str]:
    """Return the text of each field in the docstring of a dataclass, on one line, by name."""
    entries, found = _entries(options), {}
    for entry in re.findall(r"^  (\w.*(?:\n    .*)*)", entries, re.M):
        name, _, text = entry.partition(": ")
        found[name] = " ".join(text.split())
    return found


def _entries(options: type) -> str:
    entries = re.search(r"^Args:\n((?:  .*\n?)*)", inspect.getdoc(options) or "", re.M)
    return "" if entries is None else entries[1].rstrip()


def _merge_docstrings(function: Callable, options: type) -> str:
    entries, own = _entries(options), inspect.getdoc(function) or ""
    if not entries:
        return own
    return re.sub(r"^  \*\*options:.*(?:\n    .*)*", lambda _: entries, own, flags=re.M)
