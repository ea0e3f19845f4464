"""Converts request bodies to typed models; errors name the invalid field and its rule.

The rules are the models' annotations, from which the OpenAPI document is also generated.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
import orjson
from msgspec import Meta

from onepass.bundles.errors import InvalidInput
from onepass.bundles.requests import seed_number

SHOWN_CHARACTERS = 80
# Limited because parsing JSON blocks the event loop: 400,000 values take 0.1 to 0.3 s.
MAX_VALUES = 400_000
MAX_LISTS = 100_000  # lists and objects, which are each as slow as several numbers
MAX_NAME_CHARACTERS = 200
SEED_TEXT = re.compile(r"[0-9]{1,20}")
MISSING = re.compile(r"Object missing required field `(.+)`")
EXPECTED = re.compile(r"Expected `(?P<kinds>[^`]*)`(?P<limits>[^,]*)")
STEP = re.compile(r"[^.\[\]]+")  # one step of a path such as inputs[0].shape
TYPES = {"int": "an integer", "float": "a number", "str": "a text", "bool": "true or false"}
TYPES |= {"array": "a list", "object": "an object"}
Model = TypeVar("Model")

# Checked by `as_model`, as msgspec knows no limit beyond int64.
SEED_SCHEMA = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
Seed = Annotated[Any, Meta(extra_json_schema=SEED_SCHEMA)]
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]


def excerpt(value: object) -> str:
    """Return a value for a message: as JSON, shortened if it is long; "a list" or "an object"."""
    if isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "object"
        return f"an empty {kind}" if not value else f"{'a' if kind == 'list' else 'an'} {kind}"
    if isinstance(value, str):
        value = value[: SHOWN_CHARACTERS + 1]
    text = orjson.dumps(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def json_object(body: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object in a body; NaN, infinity and too many values are InvalidInput."""
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


def json_model(body: bytes | memoryview, model: type[Model]) -> Model:
    """Return the JSON object in a body as a model, without unknown fields."""
    return as_model(json_object(body), model)


def as_model(fields: Mapping[str, Any], model: type[Model], *, strict: bool = True) -> Model:
    """Return known fields as a Struct or dataclass; unless `strict`, numbers may be text."""
    try:
        # The hook converts paths, the only type of field that JSON and YAML do not have.
        made = msgspec.convert(
            fields, model, strict=strict, dec_hook=lambda kind, value: kind(value)
        )
    except msgspec.ValidationError as error:
        raise _invalid(model, fields, str(error)) from error
    seed: Any = getattr(made, "seed", None)
    if seed is not None:
        is_text = not strict and isinstance(seed, str) and SEED_TEXT.fullmatch(seed)
        try:
            made.seed = seed_number(int(seed) if is_text else seed)  # type: ignore[attr-defined]
        except ValueError:
            raise invalid_field("seed", "an integer in [0, 2^64)", seed) from None
    return made


def invalid_field(name: str, rule: str, value: object) -> InvalidInput:
    """Return the error that names a field, its rule and its value."""
    return InvalidInput(f"`{name}` must be {rule}, got {excerpt(value)}.")


def _invalid(model: type, fields: Mapping[str, Any], message: str) -> InvalidInput:
    words, _, path = message.partition(" - at `$")
    path = path.removesuffix("`").removeprefix(".")
    if missing := MISSING.fullmatch(words):
        return InvalidInput(f"`{missing[1]}` must be given.")
    if words.startswith("Invalid enum value"):
        hint = get_type_hints(model)[path]
        parts = (hint, *get_args(hint))
        choices = [word for part in parts for word in get_args(part) if isinstance(word, str)]
        return invalid_field(path, f"one of {', '.join(choices)}", fields[path])
    found = EXPECTED.match(words)
    if found is None:  # a rule of the model itself
        return InvalidInput(f"{message.removesuffix('.')}.")
    kinds = [TYPES.get(kind, kind) for kind in found["kinds"].split(" | ") if kind != "null"]
    value: Any = fields
    for step in STEP.findall(path):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return invalid_field(path, f"{' or '.join(kinds) or 'null'}{found['limits']}", value)
