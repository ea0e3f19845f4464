"""The inputs and outputs of a signature, conditions among them, and the check of a request.

Inputs for options are made of the fields of `onepass.interface.Draw`. The input for a model's only
condition is called `condition`; with several conditions, the inputs are called `condition_NAME`. If
the only condition has one row of floats per element of a sequence, its input is `frames`, counted
by `num_frames`. `conditions` in model.json maps each condition's name to its input. A condition
whose input has a time axis (of any size) has one row per element; any other condition is the same
at every time step.
"""

import dataclasses
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onepass.bundles.errors import InvalidInput, TooLarge, shorten_text
from onepass.foundation.allowed_operations import (
    PROGRAM,
    calls_of,
    list_called,
    node_of,
    reachable_keys,
    scan_graph,
)
from onepass.foundation.rules import UserError, check_seed, check_unmasked
from onepass.interface import LISTS
from onepass.networks.condition_values import Rule, check_values


def input_of(name: str, count: int) -> str:
    """Return the name of the input for condition `name` of a model with `count` conditions."""
    return "condition" if count == 1 else f"condition_{name}"


def is_condition(name: str) -> bool:
    """Return whether an input is a condition other than `frames`."""
    return name == "condition" or name.startswith("condition_")


def is_timed(info: Any) -> bool:
    """Return whether an input has a time axis, with one time step per element."""
    return len(info.shape) > 1 and info.shape[1] is None


def names_of(spec: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of each condition's input, by the condition's name."""
    stored = spec.get("conditions")
    if isinstance(stored, Mapping):
        return {str(name): str(each) for name, each in stored.items()}
    return {"condition": "frames"} if "frames" in known else {}


def has_named(spec: Mapping[str, Any]) -> bool:
    """Return whether a model has conditions other than `frames`."""
    return bool(set(names_of(spec, {}).values()) - {"frames"})


def condition_arrays(
    given: Any,
    names: Mapping[str, str],
    known: Mapping[str, Any],
    rows: int,
    length: int | None = None,
    for_all: bool = False,
) -> dict[str, np.ndarray]:
    """Return conditions as inputs with `rows` batch rows, checked as for a live model.

    A row has `length` time steps, None: any number; with `for_all`, one row may be given for all
    even in a condition with a time axis.
    """
    rules = {name: _rule_of(place, known, rows, length) for name, place in names.items()}
    return {names[name]: array for name, array in check_values(given, rules, for_all).items()}


def _rule_of(place: str, known: Mapping[str, Any], rows: int, length: int | None) -> Rule:
    if place not in known:
        raise ValueError(f"`{place}` is not an input of the model.")
    info, timed = known[place], is_timed(known[place])
    sizes = ["any" if size is None else str(size) for size in info.shape[1:]]
    sizes[:1] = ["time"] if timed else sizes[:1]
    described = f"{info.dtype.name} [{', '.join(['num', *sizes])}]"
    shape = (rows, *info.shape[1:])
    if timed and place != "frames":
        shape = (rows, length, *info.shape[2:])
    return Rule(described, shape, info.dtype, timed, info.low, info.high)


def counted_inputs(known: Mapping[str, Any]) -> dict[str, str]:
    """Return the inputs whose rows may differ in length, each with the input that counts it."""
    timed = {name for name in known if is_condition(name) and is_timed(known[name])}
    counts = LISTS | {"frames": "num_frames"} | dict.fromkeys(timed, "num_samples")
    return {name: counts[name] for name in known if counts.get(name) in known}


def _share_conditions(known: Mapping[str, Any], given: dict[str, np.ndarray]) -> None:
    """Repeat in place, for every row, each condition given once that has no time axis."""
    rows = max(map(len, given.values()), default=1)
    for name, array in given.items():
        if is_condition(name) and len(array) == 1 and not is_timed(known[name]):
            # A view without copies, since a short request may ask for any number of rows.
            given[name] = np.broadcast_to(array, [rows, *array.shape[1:]])


def _check_lengths(known: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Raise InvalidInput for a count beyond its input; truncate longer conditions in place.

    In a request for log probabilities, conditions must be exactly as long as the elements.
    """
    for name, count in counted_inputs(known).items():
        counts = [each for each in COUNTS if each in known] if name == "frames" else [count]
        longest = int(np.max(sum(arrays[each].astype(np.int64) for each in counts)))
        if longest > arrays[name].shape[1]:
            counted = " + ".join(f"`{each}`" for each in counts)
            raise InvalidInput(
                f"{counted} must be at most the {arrays[name].shape[1]} of `{name}`, got {longest}."
            )
        if is_condition(name):
            arrays[name] = arrays[name][:, :longest]
    timed = [n for n in known if (is_condition(n) or n == "frames") and is_timed(known[n])]
    for name in timed if "elements" in known else ():
        free = [axis for axis, size in enumerate(known[name].shape) if axis and size is None]
        shape, got = arrays["elements"].shape, arrays[name].shape
        if any(axis < len(shape) and got[axis] != shape[axis] for axis in free):
            raise InvalidInput(
                f"`{name}` must be as long as `elements`, {list(shape)}, got {list(got)}."
            )


LENGTHS = ("num_samples", "num_frames")  # inputs that count a row's elements, including its prefix


def _complete_prompt(known: Mapping[str, Any], given: dict[str, np.ndarray], rows: int) -> None:
    """Add the lists that a request may omit, and the numbers of their elements, in place."""
    for name, count in LISTS.items():
        if name not in known:
            continue
        lists = (given[each] for each in LISTS if LISTS[each] == count and each in given)
        if count not in given:
            widths = [array.shape[1] for array in lists]
            given[count] = np.full([rows], max(widths, default=0), np.int32)
        if name not in given and given[count].any():
            raise InvalidInput(f"`{name}` must be given if `{count}` is not 0.")
        if name not in given:
            given[name] = np.zeros([rows, 1], known[name].dtype)


def _check_prompt(known: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidInput for a prefix beyond the row's length.

    In a call for a segment of a row, also raise it if the segment ends after the longest row.
    """
    if "num_prefix" not in arrays:
        return
    for name in LENGTHS if "start" in arrays else ():
        ends = arrays["start"].astype(np.int64) + arrays.get(name, 0)
        if name in arrays and known[name].high is not None and ends.max() > known[name].high:
            raise InvalidInput(
                f"`start` + `{name}` must be at most {known[name].high:g}, got {ends.max()}."
            )
    counts = arrays["num_prefix"]
    for name in LENGTHS:
        longer = counts > arrays.get(name, counts)
        if longer.any():
            row = int(np.argmax(longer))
            raise InvalidInput(
                f"`prefix` must be at most as long as `{name}`, {arrays[name][row]}, which"
                f" counts the whole, got {counts[row]}."
            )


# Names in the Open Inference Protocol (version 2), in tensorflow.DataType, and in NumPy.
_TABLE = (
    ("BOOL", "DT_BOOL", "?"),
    ("UINT8", "DT_UINT8", "u1"),
    ("UINT16", "DT_UINT16", "<u2"),
    ("UINT32", "DT_UINT32", "<u4"),
    ("UINT64", "DT_UINT64", "<u8"),
    ("INT8", "DT_INT8", "i1"),
    ("INT16", "DT_INT16", "<i2"),
    ("INT32", "DT_INT32", "<i4"),
    ("INT64", "DT_INT64", "<i8"),
    ("FP16", "DT_HALF", "<f2"),
    ("FP32", "DT_FLOAT", "<f4"),
    ("FP64", "DT_DOUBLE", "<f8"),
)
V2_DTYPES = {v2: np.dtype(name) for v2, _, name in _TABLE}
V2_NAMES = {dtype: v2 for v2, dtype in V2_DTYPES.items()}
TENSORFLOW_DTYPES = {tensorflow: np.dtype(name) for _, tensorflow, name in _TABLE}
TENSORFLOW_NAMES = {dtype: tensorflow for tensorflow, dtype in TENSORFLOW_DTYPES.items()}


FORMAT = 2  # of the entry `serving` of model.json
Arrays = dict[str, np.ndarray]
PLAIN = "serving_default"  # the signature that TensorFlow Serving calls
WHOLE = (PLAIN, "compiled")  # signatures of whole sounds, images or arrays
STATE = "state_"  # begins the names of a state's inputs
MADE = {"sound": "sound", "picture": "images", "array": "arrays"}  # names of the kinds in messages
NUMBERS = "iuf"  # NumPy's kinds of accepted values
COUNTS = ("frames_before", "num_frames", "frames_after")  # inputs that count the given frames
MAX_DIMENSIONS = 8
LARGEST_NUMBER = 1e300


def fastest(signatures: Container[str]) -> str:
    """Return the name of the signature for whole outputs: the compiled one if there is one."""
    return "compiled" if "compiled" in signatures else PLAIN


def scale_name(side: int) -> str:
    """Return the name of the signature that draws the scale with sides of this length."""
    return f"scale_{side}"


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """The description of an input or an output."""

    dtype: np.dtype
    shape: tuple[int | None, ...]  # None for any size; the first axis is the batch axis
    low: float | None = None
    high: float | None = None
    default: float | None = None  # of all elements of an input; None: the input is required

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "TensorInfo":
        """Return the info in an entry of model.json, or raise Value-, Key- or TypeError."""
        shape = tuple(None if size == -1 else int(size) for size in stored["shape"])
        if not shape or shape[0] is not None:
            raise ValueError("the first axis must be the batch, -1")
        default = stored.get("optional_default")
        if default is not None and None in shape[1:]:
            raise ValueError("an input of any size can have no default")
        dtype = np.dtype(stored["dtype"])
        for name in ("low", "high", "optional_default"):
            _check_number(name, stored.get(name), dtype)
        return cls(dtype, shape, stored.get("low"), stored.get("high"), default)

    @property
    def sizes(self) -> list[int]:
        """The shape in the form of model.json and the protocols, with -1 for any size."""
        return [-1 if size is None else size for size in self.shape]

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for model.json, with -1 for any size and without rules that are None."""
        rules = {"low": self.low, "high": self.high, "optional_default": self.default}
        given = {name: value for name, value in rules.items() if value is not None}
        return {"dtype": self.dtype.name, "shape": self.sizes, **given}


def _check_number(name: str, value: Any, dtype: np.dtype) -> None:
    if value is None:
        return
    is_number = type(value) in (int, float) and abs(value) < LARGEST_NUMBER  # not NaN
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    if is_number and limits is not None and name == "optional_default":
        is_number = limits.min <= value <= limits.max
    if not is_number:
        raise ValueError(f"`{name}` must be a number, got {shorten_text(repr(value))}")


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a function, by name."""

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Signature":
        """Return the signature in an entry of model.json, with errors as `TensorInfo.from_dict`."""
        inputs, outputs = stored["inputs"].items(), stored["outputs"].items()
        read = TensorInfo.from_dict
        return cls({n: read(info) for n, info in inputs}, {n: read(info) for n, info in outputs})

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for model.json."""
        sides = {"inputs": self.inputs, "outputs": self.outputs}
        return {side: {n: x.to_dict() for n, x in infos.items()} for side, infos in sides.items()}


def check(signature: Signature, inputs: Mapping[str, Any]) -> Arrays:
    """Return all inputs in the signature's dtypes, with defaults; integers fit float inputs."""
    known = signature.inputs
    infos = {name: input_info(known, name) for name in inputs}
    arrays = {name: check_input(name, info, inputs[name]) for name, info in infos.items()}
    _share_conditions(known, arrays)
    rows = _rows(arrays)
    _complete_prompt(known, arrays, rows)
    for name in [name for name in known if name not in arrays]:
        if (default := known[name].default) is None:
            raise InvalidInput(f"`{name}` must be given.")
        arrays[name] = _fill(known[name], rows, default)
    _check_lengths(known, arrays)
    _check_prompt(known, arrays)
    return {name: arrays[name] for name in known}


def input_info(inputs: Mapping[str, TensorInfo], name: str) -> TensorInfo:
    """Return the description of an input; raise InvalidInput for an unknown name."""
    if name not in inputs:
        known = ", ".join(inputs)
        raise InvalidInput(f"`{shorten_text(name)}` is not an input; there are {known}.")
    return inputs[name]


def check_outputs(outputs: Mapping[str, TensorInfo], names: Iterable[str]) -> None:
    """Raise InvalidInput, naming all outputs, if one of `names` is unknown."""
    for name in names:
        if name not in outputs:
            known = ", ".join(outputs)
            raise InvalidInput(f"`{shorten_text(name)}` is not an output; there are {known}.")


def v2_dtype(name: str, datatype: str) -> np.dtype:
    """Return the dtype of a datatype in the v2 protocol; raise InvalidInput if it is unknown."""
    if datatype not in V2_DTYPES:
        got = shorten_text(datatype)
        raise InvalidInput(f"`{name}` must be of {', '.join(V2_DTYPES)}, got `{got}`.")
    return V2_DTYPES[datatype]


def check_dimensions(name: str, shape: Sequence[Any]) -> None:
    """Raise InvalidInput for a shape with more than MAX_DIMENSIONS dimensions."""
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidInput(
            f"`{name}` must have at most {MAX_DIMENSIONS} dimensions, got {len(shape)}."
        )


def checked_count(name: str, shape: Sequence[int], dtype: np.dtype, limit_bytes: int) -> int:
    """Return the number of elements of a shape, whose array must have at most `limit_bytes`."""
    check_dimensions(name, shape)
    if any(side < 0 for side in shape):
        raise InvalidInput(f"`{name}` must have no negative side, got {list(shape)}.")
    # A size of 0 must not hide another size that is too large for NumPy.
    if math.prod(max(side, 1) for side in shape) * dtype.itemsize > limit_bytes:
        raise TooLarge(
            f"`{name}` of shape {list(shape)} would bring the request over {limit_bytes} bytes."
        )
    return math.prod(shape)


def from_bytes(name: str, content: Any, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an array that views bytes; raise InvalidInput unless they fit the checked shape."""
    wanted = math.prod(shape) * dtype.itemsize
    if len(content) != wanted:
        raise InvalidInput(
            f"`{name}` of shape {list(shape)} must have {wanted} bytes, got {len(content)}."
        )
    if dtype != np.bool_:
        return np.frombuffer(content, dtype).reshape(shape)
    numbers = np.frombuffer(content, np.uint8)
    if (numbers > 1).any():
        raise InvalidInput(f"`{name}` must have bytes of 0 or 1, got {numbers.max()}.")
    return numbers.view(np.bool_).reshape(shape)


def check_input(name: str, info: TensorInfo, value: Any) -> np.ndarray:
    """Return one input as an array of its dtype; raise InvalidInput unless it fits `info`."""
    try:
        check_unmasked(value, name)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    try:
        array = checked_seeds(value).view(np.int64) if name == "seed" else np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"`{name}` must be rectangular and of numbers.") from error
    array = _of_dtype(name, info.dtype, array)
    _check_shape(name, info.shape, array)
    _check_range(name, info, array)
    return array


def checked_seeds(seeds: Any) -> np.ndarray:
    """Return seeds as uint64; raise InvalidInput unless each is an integer in [0, 2^64)."""
    # NumPy would round integers that no type holds together, and count booleans among them.
    array = np.asarray(seeds, None if hasattr(seeds, "dtype") else object)
    if array.dtype.kind == "u" or (array.dtype.kind == "i" and (array >= 0).all()):
        return array.astype(np.uint64)
    try:
        numbers = [check_seed(seed) for seed in array.astype(object).flat]
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return np.array(numbers, np.uint64).reshape(array.shape)


def example(signature: Signature, rows: int, length: int = 1) -> Arrays:
    """Return example inputs: defaults, or else zeros clipped to the allowed range.

    Axes of any size have the size `length`, as do the values of the inputs that count them.
    """
    counts = counted_inputs(signature.inputs).values()
    return {
        name: _fill(info, rows, length if name in counts else _value(info), length)
        for name, info in signature.inputs.items()
    }


def first_states(inputs: Mapping[str, TensorInfo], rows: int) -> Arrays:
    """Return the inputs that are states, before the first element of each row."""
    states = {name: info for name, info in inputs.items() if name.startswith(STATE)}
    return {name: _fill(info, rows, info.default or 0) for name, info in states.items()}


def _fill(info: TensorInfo, rows: int, value: float, length: int = 0) -> np.ndarray:
    """Return rows of one value; axes of any size have the size `length`."""
    shape = (rows, *(length if size is None else size for size in info.shape[1:]))
    return np.full(shape, value, info.dtype)


def _value(info: TensorInfo) -> float:
    if info.default is not None:
        return info.default
    low = -np.inf if info.low is None else info.low
    high = np.inf if info.high is None else info.high
    return min(max(0, low), high)


def _of_dtype(name: str, dtype: np.dtype, array: np.ndarray) -> np.ndarray:
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in NUMBERS or (dtype.kind in "iu" and array.dtype.kind == "f"):
        got = "text" if array.dtype.kind in "US" else array.dtype.name
        raise InvalidInput(f"`{name}` must be {dtype.name}, got {got}.")
    if dtype.kind in "iu" and array.size:
        limits, least, greatest = np.iinfo(dtype), int(array.min()), int(array.max())
        if least < limits.min or greatest > limits.max:
            raise InvalidInput(
                f"`{name}` must be {dtype.name}, got {least if least < limits.min else greatest}."
            )
    with np.errstate(over="ignore"):  # overflow gives infinity, which is rejected
        return array.astype(dtype)


def _check_shape(name: str, shape: tuple[int | None, ...], array: np.ndarray) -> None:
    if not _fits(shape, array.shape):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        found = ", ".join(map(str, array.shape))
        turned = array.ndim > 1 and _fits(shape, np.swapaxes(array, -1, -2).shape)
        hint = ": it is transposed" if turned else ""
        raise InvalidInput(f"`{name}` must have the shape [{wanted}], got [{found}]{hint}.")
    if not array.size:
        raise InvalidInput(f"`{name}` must not be empty, got {list(array.shape)}.")


def _fits(shape: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    return len(shape) == len(found) and all(
        size in (None, actual) for size, actual in zip(shape, found, strict=True)
    )


def _check_range(name: str, info: TensorInfo, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        index = np.argwhere(~np.isfinite(array))[0].tolist()
        raise InvalidInput(f"`{name}` must be finite, got {array[tuple(index)]} at {index}.")
    low = -math.inf if info.low is None else info.low
    high = math.inf if info.high is None else info.high
    if (value := array.min()) < low or (value := array.max()) > high:
        rule = f"between {low:g} and {high:g}"
        rule = f"at most {high:g}" if info.low is None else rule
        rule = f"at least {low:g}" if info.high is None else rule
        got = f"{value:g}" if array.dtype.kind == "f" else str(value)
        raise InvalidInput(f"`{name}` must be {rule}, got {got}.")


def _rows(arrays: Arrays) -> int:
    first, rows = next(((name, len(array)) for name, array in arrays.items()), ("", 1))
    for name, array in arrays.items():
        if len(array) != rows:
            raise InvalidInput(f"`{name}` must have {rows} rows as `{first}`, got {len(array)}.")
    return rows


LOWERED = "lowered.pb"  # without `serving_default`, with programs as StableHLO


def check_program(folder: Path, signatures: Mapping[str, Signature]) -> Any:
    """Return the bundle's program, a MetaGraphDef; raise UserError unless it may be loaded.

    The program must consist of allowed operations, and have the signatures that model.json
    declares. If the bundle has a lowered program, without `serving_default`, that one is used.
    """
    path, is_lowered = folder / LOWERED, (folder / LOWERED).exists()
    path = path if is_lowered else folder / PROGRAM
    graph = scan_graph(path)
    for name, signature in signatures.items():
        if is_lowered and name == PLAIN:
            continue
        if name not in graph.signature_def:
            raise UserError(f"{path} has no signature `{name}`, which model.json declares.")
        stored = graph.signature_def[name]
        sides = ((signature.inputs, stored.inputs), (signature.outputs, stored.outputs))
        for declared, found in sides:
            known = {key: (info.dtype, info.shape) for key, info in declared.items()}
            if known != {key: _of_proto(info) for key, info in found.items()}:
                raise UserError(f"{path} and model.json differ in the signature `{name}`.")
    return graph


def without(graph: Any, signature: str) -> Any:
    """Return a checked MetaGraphDef without a signature and the operations that only it runs."""
    outputs = {
        name: {node_of(info.name) for info in stored.outputs.values()}
        for name, stored in graph.signature_def.items()
    }
    read = {node_of(source) for node in graph.graph_def.node for source in node.input}
    # The signature's outputs that no other node reads and no other signature returns.
    own = outputs.pop(signature) - read.union(*outputs.values())
    nodes = [node for node in graph.graph_def.node if node.name not in own]
    functions = graph.graph_def.library.function
    calls = calls_of({function.signature.name: function for function in functions})
    kept = reachable_keys(calls, [name for node in nodes for name in list_called(node)])
    smaller = type(graph)(meta_info_def=graph.meta_info_def, saver_def=graph.saver_def)
    for name in outputs:
        smaller.signature_def[name].CopyFrom(graph.signature_def[name])
    smaller.graph_def.versions.CopyFrom(graph.graph_def.versions)
    smaller.graph_def.node.extend(nodes)
    smaller.graph_def.library.function.extend(f for f in functions if f.signature.name in kept)
    return smaller


def _of_proto(info: Any) -> tuple[np.dtype, tuple[int | None, ...]]:
    import tensorflow as tf

    sizes = tuple(None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim)
    return np.dtype(tf.as_dtype(info.dtype).as_numpy_dtype), sizes
