"""Reads request bodies as typed models and tensors, with limits on sizes and durations.

The rules are the models' annotations, from which the OpenAPI document is also generated.
"""

import asyncio
import base64
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
import orjson
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from onepass.bundles.errors import Cancelled, InvalidInput, Overloaded, ServingError, TooLarge
from onepass.bundles.sampling import seed_number
from onepass.bundles.signature import SEED, Signature, TensorInfo, input_info

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


# The JSON type for each kind of dtype, and its plural in messages.
ELEMENTS: dict[str, tuple[Any, str]] = {"f": (float, "numbers"), "b": (bool, "booleans")}
ELEMENTS |= dict.fromkeys("iu", (int, "integers"))


def json_tensor(name: str, value: object, info: TensorInfo) -> np.ndarray:
    """Convert nested lists to an array with the dtype and the number of axes of an input.

    A tensor of type uint8 may also be `{"b64": text}`, or a list of one such object per row.
    """
    if info.dtype == np.uint8 and _is_base64(value):
        return _from_base64(name, value, info.shape)
    if info.dtype == np.uint8 and isinstance(value, list) and value and _is_base64(value[0]):
        return np.concatenate([_from_base64(name, row, (1, *info.shape[1:])) for row in value])
    return _array(name, value, len(info.shape), info.dtype)


def _array(name: str, value: object, rank: int, dtype: np.dtype) -> np.ndarray:
    element, words = ELEMENTS[dtype.kind]
    if name == SEED and dtype.kind in "iu":  # whose range the signature's check knows
        element, dtype = Any, np.dtype(object)
    kind: Any = functools.reduce(lambda inner, _: GenericAlias(list, inner), range(rank), element)
    try:
        with np.errstate(over="ignore"):
            array = np.array(msgspec.convert(value, kind), dtype)
    except msgspec.ValidationError as error:
        rule = f"must hold {words} in lists {rank} deep"
        raise InvalidInput(f"`{name}` {rule}: {error}.") from error
    except OverflowError as error:
        raise InvalidInput(f"`{name}` must fit {dtype}, got a number outside it.") from error
    except ValueError as error:
        raise InvalidInput(f"`{name}` must not be ragged.") from error
    if not array.size:
        raise InvalidInput(f"`{name}` must not be empty.")
    return array


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
    if not isinstance(value, str):
        raise invalid_field(name, "base64", value)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise invalid_field(name, "base64", value) from error


def from_rows(instances: list, signature: Signature) -> dict[str, np.ndarray]:
    """Return the inputs of rows that are objects, or just values of the only required input."""
    if all(isinstance(row, dict) and not _is_base64(row) for row in instances):
        names = instances[0].keys()
        if any(row.keys() != names for row in instances):
            raise InvalidInput("`instances` must name the same inputs in every row.")
        return from_columns({name: [row[name] for row in instances] for name in names}, signature)
    return from_columns(instances, signature)


def from_columns(inputs: object, signature: Signature) -> dict[str, np.ndarray]:
    """Return the inputs in `inputs`: an object of tensors by name, or the only required tensor."""
    if not isinstance(inputs, dict) or _is_base64(inputs):
        inputs = {only_input(signature): inputs}
    return {
        name: json_tensor(name, value, input_info(signature.inputs, name))
        for name, value in inputs.items()
    }


def only_input(signature: Signature) -> str:
    """Return the name of the only required input; raise InvalidInput if there is not just one."""
    needed = [name for name, info in signature.inputs.items() if info.default is None]
    if len(needed) != 1:
        raise InvalidInput(f"Inputs must be named; the model has {', '.join(signature.inputs)}.")
    return needed[0]


BODIES_AT_ONCE = 16  # limit of the total size of all bodies, in bodies of the largest size
LARGE_BYTES = 1 << 16

LIMITS, RECEIVED = "onepass.body_limits", "onepass.body_bytes"  # keys in an ASGI scope
DECIMAL = re.compile(r"[0-9]{1,18}")

Result = TypeVar("Result")


class BodyTooSlow(ServingError):  # noqa: N818 - named as the other errors
    """Error for a body that did not arrive in time."""

    http_status, grpc_status, code = 408, "DEADLINE_EXCEEDED", "body_too_slow"


class BodyLimits:
    """The limits on a body's size and duration, and the number of bytes `used` by all bodies."""

    def __init__(self, max_bytes: int, seconds: float):
        self.max_bytes, self.seconds, self.used = max_bytes, seconds, 0

    def add(self, scope: Scope, count: int) -> None:
        """Count received bytes; raise TooLarge or Overloaded if they exceed a limit."""
        if scope[RECEIVED] + count > self.max_bytes:
            raise TooLarge(f"The body must have at most {self.max_bytes:,} bytes.")
        if self.used + count > BODIES_AT_ONCE * self.max_bytes:
            raise Overloaded("All request bodies together are too large now.")
        self.used += count
        scope[RECEIVED] += count


async def read_body(request: Request, function: Callable[..., Result], *arguments: Any) -> Result:
    """Read the body and return `function(body, *arguments)`, run in a thread if it is large."""
    body = await body_of(request)
    if len(body) > LARGE_BYTES:
        return await asyncio.to_thread(function, body, *arguments)
    return function(body, *arguments)


async def body_of(request: Request) -> bytes:
    """Return the whole body, within the limits of length, total size and time."""
    limits: BodyLimits = request.scope[LIMITS]
    declared = request.headers.get("content-length", "0")
    if not DECIMAL.fullmatch(declared):
        raise InvalidInput("`Content-Length` must be a number of bytes.")
    if int(declared) > limits.max_bytes:
        raise TooLarge(f"The body must have at most {limits.max_bytes:,} bytes.")
    parts = []
    try:
        async with asyncio.timeout(limits.seconds):
            async for part in request.stream():
                limits.add(request.scope, len(part))
                parts.append(part)
    except TimeoutError as error:
        raise BodyTooSlow(f"The body must arrive within {limits.seconds:g} seconds.") from error
    except ClientDisconnect as error:
        raise Cancelled("The client disconnected.") from error
    return b"".join(parts)
