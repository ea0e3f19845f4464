"""Request bodies as typed models; an invalid field is reported with its name and rule.

The rules are the models' annotations, from which the OpenAPI document is generated too.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import orjson
from msgspec import Meta

from serving.errors import InvalidInput

SHOWN_CHARACTERS = 80
# Parsing JSON blocks the event loop: 400,000 values take 0.1 to 0.3 s.
MAX_VALUES = 400_000
MAX_LISTS = 100_000  # lists and objects, each as slow as several numbers
MAX_SEED = 2**63 - 1
MAX_NAME_CHARACTERS = 200
AT = re.compile(r"Object missing required field `(?P<missing>.+?)`| - at `\$\.?(?P<path>.*)`$")
STEP = re.compile(r"[^.\[\]]+")  # of a path such as inputs[0].shape
BASIC = {"boolean": "true or false", "array": "a list", "object": "an object", "null": "null"}
Model = TypeVar("Model")
Schema = Mapping[str, Any]

Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]


def excerpt(value: object) -> str:
    """Return a value as JSON, shortened where it is long."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        value = value[: SHOWN_CHARACTERS + 1]
    text = orjson.dumps(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def json_object(body: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object in a body; raise InvalidInput for anything else, NaN included."""
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
    """Return the JSON object in a body as a model; unknown fields are ignored."""
    return as_model(json_object(body), model)


def as_model(fields: Mapping[str, Any], model: type[Model], *, strict: bool = True) -> Model:
    """Return fields as a Struct or dataclass; raise InvalidInput, which names the wrong field.

    Numbers given as text, as in a query, are rejected if `strict`.
    """
    try:
        # The hook makes paths, the only type of a field that JSON and YAML lack.
        return msgspec.convert(
            fields, model, strict=strict, dec_hook=lambda kind, value: kind(value)
        )
    except msgspec.ValidationError as error:
        raise _invalid(model, fields, str(error)) from error


def invalid_field(name: str, rule: str, value: object) -> InvalidInput:
    """Return the error that names a field, its rule and its value."""
    return InvalidInput(f"`{name}` must be {rule}, got {excerpt(value)}.")


def _invalid(model: type, fields: Mapping[str, Any], message: str) -> InvalidInput:
    (schema,), components = msgspec.json.schema_components(
        [model], schema_hook=lambda kind: {"type": "string"}, ref_template="{name}"
    )
    found = AT.search(message)
    if found is None:
        return InvalidInput(f"{message.removesuffix('.')}.")
    if found["missing"]:
        return InvalidInput(f"`{found['missing']}` must be given.")
    schemas, value = [*_alternatives(schema, components)], fields
    for step in STEP.findall(found["path"]):
        schemas = [below for schema in schemas for below in _below(schema, step, components)]
        value = value[int(step)] if isinstance(value, list) else value[step]
    rule = " or ".join(_rule(schema) for schema in schemas if schema.get("type") != "null")
    return invalid_field(found["path"], rule or "null", value)


def _alternatives(schema: Schema, components: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield the schema, or each of the alternatives that it allows."""
    schema = components[schema["$ref"]] if "$ref" in schema else schema
    for alternative in schema.get("anyOf", ()):
        yield from _alternatives(alternative, components)
    if "anyOf" not in schema:
        yield schema


def _below(schema: Schema, step: str, components: Mapping[str, Schema]) -> Iterator[Schema]:
    below = schema.get("items") if step.isdigit() else schema.get("properties", {}).get(step)
    if below is not None:
        yield from _alternatives(below, components)


def _rule(schema: Schema) -> str:
    if "enum" in schema:
        choices = ", ".join(map(str, schema["enum"]))
        return f"one of {choices}" if len(schema["enum"]) > 1 else choices
    kind = schema.get("type", "")
    if kind in ("integer", "number"):
        return f"{'an integer' if kind == 'integer' else 'a number'}{_range(schema)}"
    if kind == "array" and schema.get("minItems"):
        return "a list of one element or more"
    if kind != "string":
        return BASIC.get(kind, "as in `/openapi.json`")
    if "contentEncoding" in schema:
        return schema["contentEncoding"]
    most = f" of at most {schema['maxLength']:,} characters" if "maxLength" in schema else ""
    return f"a text{most}{', and not empty' if schema.get('minLength') else ''}"


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    words = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "at most"}
    limits = [f"{word} {schema[name]}" for name, word in words.items() if name in schema]
    return f" {' and '.join(limits)}" if limits else ""
