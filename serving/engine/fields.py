"""Fields of requests and settings as typed models, and tensors as JSON has them."""

import base64
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

import numpy as np
import orjson
import pydantic

from onepass.bundles.errors import InvalidInput
from onepass.bundles.signature import Arrays, Signature, TensorInfo, input_info
from onepass.foundation.rules import must_be

SHOWN_CHARACTERS = 80
MAX_NAME_CHARACTERS = 200
# Rules by the type of pydantic's error; of any other type, the message is the rule.
RULES = {
    "missing": "given",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "an object"),
    "finite_number": "a finite number",
    "string_type": "a text",
    "string_pattern_mismatch": "a text that matches {pattern}",
    "string_too_long": "a text of at most {max_length} characters",
    "string_too_short": "a text of at least {min_length} characters",
    "bool_type": "true or false",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "too_short": "of length at least {min_length}",
    "too_long": "of length at most {max_length}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
    "none_required": "null",
}
Model = TypeVar("Model")
SEED_RULE = "an integer in [0, 2^64)"
Seed = Annotated[int, pydantic.Field(ge=0, le=2**64 - 1)]
Name = Annotated[str, pydantic.Field(max_length=MAX_NAME_CHARACTERS)]
adapter: Any = functools.cache(pydantic.TypeAdapter)
# By the kind of a dtype: the JSON types of an element, and their plural in messages.
INTEGERS: tuple[set[type], str] = {int}, "integers"
ELEMENTS = dict.fromkeys("iu", INTEGERS)


class Fields(pydantic.BaseModel):
    """Fields of a request, of which unknown ones are ignored; no value is made another type.

    Lists and objects of a field fail at their first wrong value (`fail_fast`): an error about each
    of many would take a kilobyte of memory.
    """

    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False, defer_build=True)


def as_model(fields: Mapping[str, Any], model: type[Model], *, are_texts: bool = False) -> Model:
    """Return fields as a model or raise InvalidInput; `are_texts`: all are text, as in a query."""
    validate = adapter(model).validate_strings if are_texts else adapter(model).validate_python
    try:
        return validate(fields)
    except pydantic.ValidationError as error:
        raise InvalidInput(broken_rule(error, fields)) from error


def broken_rule(error: pydantic.ValidationError, fields: Mapping[str, Any]) -> str:
    """Return the message for the first field that broke a rule: its name, the rule, its value."""
    errors = error.errors(include_url=False)
    first, value = errors[0], cast(Any, fields)
    path: list[int | str] = []
    for step in first["loc"]:
        if step not in (range(len(value)) if isinstance(value, list) else value or ()):
            break  # which of a union's types it is, or a field that is missing
        path, value = [*path, step], value[step]
        if not isinstance(value, list | dict):
            break
    if first["type"] == "value_error":  # a rule of the model itself
        return str(first["ctx"]["error"])
    if first["type"] == "missing":
        return f"`{_dotted(first['loc'])}` must be given."
    same = [each for each in errors if list(each["loc"][: len(path)]) == path]
    rules = [SEED_RULE] if path == ["seed"] else dict.fromkeys(_rule(each) for each in same)
    return must_be(_dotted(path), " or ".join(rules), excerpt(value))


def _rule(error: Any) -> str:
    context = dict(error.get("ctx", {}))
    for name, value in context.items():
        if name == "expected":  # the names in a Literal, as 'a', 'b' or 'c'
            context[name] = value.replace("'", "").replace(" or ", ", ")
        elif isinstance(value, float):
            context[name] = f"{value:g}"
    return RULES[error["type"]].format(**context) if error["type"] in RULES else error["msg"]


def _dotted(path: Any) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def invalid_field(name: str, rule: str, value: object) -> InvalidInput:
    """Return the error that names a field, its rule and its value."""
    return InvalidInput(must_be(name, rule, excerpt(value)))


def excerpt(value: object) -> str:
    """Return a value for a message: as JSON, shortened if it is long; "a list" or "an object"."""
    if isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "object"
        return f"an empty {kind}" if not value else f"{'a' if kind == 'list' else 'an'} {kind}"
    if isinstance(value, str):
        value = value[: SHOWN_CHARACTERS + 1]
    text = orjson.dumps(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


ELEMENTS |= {"f": ({int, float}, "numbers"), "b": ({bool}, "booleans")}


def json_tensor(name: str, value: object, info: TensorInfo) -> np.ndarray:
    """Convert nested lists to an input; uint8 may also be `{"b64": text}`, or one per row."""
    if info.dtype == np.uint8 and _is_base64(value):
        return _from_base64(name, value, info.shape)
    if info.dtype == np.uint8 and isinstance(value, list) and value and _is_base64(value[0]):
        return np.concatenate([_from_base64(name, row, (1, *info.shape[1:])) for row in value])
    return _array(name, value, len(info.shape), info.dtype)


def _array(name: str, value: Any, rank: int, dtype: np.dtype) -> np.ndarray:
    kinds, words = ELEMENTS[dtype.kind]
    is_seed = name == "seed" and dtype.kind in "iu"  # whose range the signature's check knows
    elements = [value]
    for _ in range(rank):
        if any(type(each) is not list for each in elements):
            raise InvalidInput(f"`{name}` must hold {words} in lists {rank} deep.")
        elements = list(itertools.chain.from_iterable(elements))
    if not elements:
        raise InvalidInput(f"`{name}` must not be empty.")
    if not (is_seed or {*map(type, elements)} <= kinds):
        raise InvalidInput(f"`{name}` must hold {words} in lists {rank} deep.")
    try:
        with np.errstate(over="ignore"):
            return np.array(value, object if is_seed else dtype)
    except OverflowError as error:
        raise InvalidInput(f"`{name}` must fit {dtype}, got a number outside it.") from error
    except ValueError as error:
        raise InvalidInput(f"`{name}` must not be ragged.") from error


def flat_tensor(name: str, value: object, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Convert a flat list or nested lists to an array; raise InvalidInput unless they fit."""
    nested = isinstance(value, list) and bool(value) and type(value[0]) is list
    array = _array(name, value, len(shape) if nested else 1, dtype)
    if (nested and array.shape != tuple(shape)) or array.size != math.prod(shape):
        declared, found = list(shape), list(array.shape)
        raise InvalidInput(f"`{name}` must have its declared shape {declared}, got {found}.")
    return array.reshape(shape)


def _is_base64(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def _from_base64(name: str, value: Any, shape: Sequence[int | None]) -> np.ndarray:
    data = base64_bytes(name, value["b64"] if _is_base64(value) else None)
    sizes = [-1 if side is None else side for side in shape]
    try:
        if data:
            return np.frombuffer(data, np.uint8).reshape(sizes)
    except ValueError:  # a wrong number of bytes, or several unknown sizes
        pass
    raise InvalidInput(f"`{name}` must have the shape {sizes}, got {len(data):,} bytes.")


def base64_bytes(name: str, value: object) -> bytes:
    """Decode a base64 string; raise InvalidInput, naming the field, for anything else."""
    try:
        return base64.b64decode(value, validate=True)  # type: ignore[arg-type] # so a TypeError
    except (TypeError, ValueError) as error:
        raise invalid_field(name, "base64", value) from error


def from_rows(instances: list, signature: Signature) -> Arrays:
    """Return the inputs of rows that are objects, or just values of the only required input."""
    if all(isinstance(row, dict) and not _is_base64(row) for row in instances):
        names = instances[0].keys()
        if any(row.keys() != names for row in instances):
            raise InvalidInput("`instances` must name the same inputs in every row.")
        return from_columns({name: [row[name] for row in instances] for name in names}, signature)
    return from_columns(instances, signature)


def from_columns(inputs: object, signature: Signature) -> Arrays:
    """Return the inputs in `inputs`: an object of tensors by name, or the only required tensor."""
    if not isinstance(inputs, dict) or _is_base64(inputs):
        needed = [name for name, info in signature.inputs.items() if info.default is None]
        if len(needed) != 1:
            names = ", ".join(signature.inputs)
            raise InvalidInput(f"Inputs must be named; the model has {names}.")
        inputs = {needed[0]: inputs}
    infos = {name: input_info(signature.inputs, name) for name in inputs}
    return {name: json_tensor(name, inputs[name], info) for name, info in infos.items()}
