"""Reads request bodies as fields and tensors, with limits on sizes and durations."""

import asyncio
import base64
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import orjson
from starlette.requests import ClientDisconnect, Request

from onepass.bundles.errors import Cancelled, InvalidInput, Overloaded, TooLarge
from onepass.bundles.signature import SEED, Signature, TensorInfo, input_info
from serving.engine.fields import Model, as_model, excerpt, invalid_field
from serving.http.responses import HttpError

# Limited because parsing JSON blocks the event loop: 400,000 values take 0.1 to 0.3 s.
MAX_VALUES = 400_000
MAX_LISTS = 100_000  # lists and objects, which are each as slow as several numbers
BODIES_AT_ONCE = 16  # limit of the total size of all bodies, in bodies of the largest size
LARGE_BYTES = 1 << 16
LIMITS, RECEIVED = "onepass.body_limits", "onepass.body_bytes"  # keys in an ASGI scope
DECIMAL = re.compile(r"[0-9]{1,18}")
# By the kind of a dtype: the JSON types of an element, and their plural in messages.
INTEGERS: tuple[set[type], str] = {int}, "integers"
ELEMENTS = dict.fromkeys("iu", INTEGERS)
ELEMENTS |= {"f": ({int, float}, "numbers"), "b": ({bool}, "booleans")}
Result = TypeVar("Result")


class BodyLimits:
    """The limits on a body's size and duration, and the number of bytes `used` by all bodies."""

    def __init__(self, max_bytes: int, seconds: float):
        self.max_bytes, self.seconds, self.used = max_bytes, seconds, 0

    async def read(self, request: Request) -> bytes:
        """Return the whole body; its bytes count as used until the request ends."""
        declared = request.headers.get("content-length", "0")
        if not DECIMAL.fullmatch(declared):
            raise InvalidInput("`Content-Length` must be a number of bytes.")
        parts = []
        try:
            async with asyncio.timeout(self.seconds):
                self._check_size(int(declared))
                async for part in request.stream():
                    self._check_size(request.scope[RECEIVED] + len(part))
                    if self.used + len(part) > BODIES_AT_ONCE * self.max_bytes:
                        raise Overloaded("All request bodies together are too large now.")
                    self.used += len(part)
                    request.scope[RECEIVED] += len(part)
                    parts.append(part)
        except TimeoutError as error:
            message = f"The body must arrive within {self.seconds:g} seconds."
            raise HttpError(408, "body_too_slow", message) from error
        except ClientDisconnect as error:
            raise Cancelled("The client disconnected.") from error
        return b"".join(parts)

    def _check_size(self, count: int) -> None:
        if count > self.max_bytes:
            raise TooLarge(f"The body must have at most {self.max_bytes:,} bytes.")


async def body_of(request: Request) -> bytes:
    """Return the whole body, within the limits of length, total size and time."""
    limits: BodyLimits = request.scope[LIMITS]
    return await limits.read(request)


async def read_body(request: Request, function: Callable[..., Result], *arguments: Any) -> Result:
    """Read the body and return `function(body, *arguments)`, run in a thread if it is large."""
    body = await body_of(request)
    if len(body) > LARGE_BYTES:
        return await asyncio.to_thread(function, body, *arguments)
    return function(body, *arguments)


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
    """Return the JSON object in a body as a model."""
    return as_model(json_object(body), model)


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
    kinds, words = ELEMENTS[dtype.kind]
    array = np.array(value, object)
    if isinstance(value, list) and not array.size:
        raise InvalidInput(f"`{name}` must not be empty.")
    is_seed = name == SEED and dtype.kind in "iu"  # whose range the signature's check knows
    if array.ndim != rank or not (is_seed or {*map(type, array.ravel().tolist())} <= kinds):
        raise InvalidInput(f"`{name}` must hold {words} in lists {rank} deep that are not ragged.")
    try:
        with np.errstate(over="ignore"):
            return array if is_seed else array.astype(dtype)
    except OverflowError as error:
        raise InvalidInput(f"`{name}` must fit {dtype}, got a number outside it.") from error


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
        needed = [name for name, info in signature.inputs.items() if info.default is None]
        if len(needed) != 1:
            names = ", ".join(signature.inputs)
            raise InvalidInput(f"Inputs must be named; the model has {names}.")
        inputs = {needed[0]: inputs}
    return {
        name: json_tensor(name, value, input_info(signature.inputs, name))
        for name, value in inputs.items()
    }
