"""Fields of a JSON body, checked: what breaks a rule is refused with its name and the rule."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from serving.errors import InvalidInput

SHOWN_CHARACTERS = 80
# Reading JSON holds up everything else: 400,000 values do so for 0.1 to 0.3 s.
MAX_VALUES = 400_000
MAX_LISTS = 100_000  # lists and objects, each of which costs as much as several numbers
MAX_SEED = 2**63 - 1
Fields = Mapping[str, Any]


def excerpt(value: object) -> str:
    """The value as JSON, cut off where it is long."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        value = value[: SHOWN_CHARACTERS + 1]
    text = orjson.dumps(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def json_object(body: bytes | memoryview) -> dict[str, Any]:
    """The JSON object in a body; InvalidInput for anything else, NaN and Infinity included."""
    text = bytes(body)
    if text.count(b"[") + text.count(b"{") > MAX_LISTS:
        raise InvalidInput(f"The body must have at most {MAX_LISTS:,} lists and objects.")
    if text.count(b",") + text.count(b":") > MAX_VALUES:
        raise InvalidInput(
            f"JSON must have at most {MAX_VALUES:,} values: send more as binary tensors (v2, gRPC)."
        )
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The body must be JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"The body must be a JSON object, got {excerpt(value)}.")
    return value


def invalid_field(name: str, rule: str, value: object) -> InvalidInput:
    """The error that names the field, its rule and what came."""
    return InvalidInput(f"`{name}` must be {rule}, got {excerpt(value)}.")


def integer(fields: Fields, name: str, default: int, low: int, high: int) -> int:
    """The integer of that name in [low, high]; the default where there is none, or null."""
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise invalid_field(name, f"an integer from {low} to {high}", value)
    return value


def number(fields: Fields, name: str, default: float | None, low: float, high: float):
    """The number of that name in [low, high]; the default where there is none, or null."""
    value = fields.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not (math.isfinite(value) and low <= value <= high):
        raise invalid_field(name, f"a number from {low:g} to {high:g}", value)
    return float(value)


def text(fields: Fields, name: str, max_characters: int) -> str | None:
    """The text of that name; None where there is none, or null."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > max_characters:
        raise invalid_field(name, f"a text of at most {max_characters:,} characters", value)
    return value


def required_text(fields: Fields, name: str, max_characters: int) -> str:
    """The text of that name, which must not be empty."""
    value = text(fields, name, max_characters)
    if not value or not value.strip():
        raise InvalidInput(f"`{name}` must be given, and not empty.")
    return value


def choice(fields: Fields, name: str, default: str, choices: Iterable[str]) -> str:
    """The word of that name, one of the choices; the default where there is none, or null."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or value not in choices:
        raise invalid_field(name, f"one of {', '.join(choices)}", value)
    return value
