"""Configurations as JSON values: written, compared, and read back as dataclasses."""

import dataclasses
import json

from replicator.runs.errors import UserError


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


def stored_config(kind, stored: dict):
    """A dataclass `kind`, with dataclasses in it, from the content of a config.json.

    A setting with a default that is not there yet, written by an earlier version, takes it; a
    whole section must be there. Raises UserError that says what is wrong in it.
    """
    fields = dataclasses.fields(kind)
    known = [f.name for f in fields if f.name in stored or f.default is dataclasses.MISSING]
    try:
        return dataclass_from(kind, {name: stored[name] for name in known})
    except KeyError as error:
        raise UserError(f"The stored configuration has no {error}.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"The stored configuration is not one of this version: {error}") from error


def dataclass_from(kind, values: dict):
    """A dataclass of JSON values, lists as tuples; TypeError or ValueError for others."""
    kinds = {field.name: field.type for field in dataclasses.fields(kind)}
    return kind(**{name: _from_json(kinds.get(name), value) for name, value in values.items()})


def _from_json(kind, value):
    if isinstance(value, dict) and dataclasses.is_dataclass(kind):
        return dataclass_from(kind, value)
    return tuple(value) if isinstance(value, list) else value
