"""Lowering rules: how the machine's instructions compute TensorFlow's operations."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.machine.assembly import Op
from onepass.machine.formulas import FUNCTIONS
from onepass.machine.kernels import LANES, pad_channels
from onepass.machine.lowering import Lowering, Resource, Slot, rule
from onepass.machine.values import (
    KNOWN,
    Any_Value,
    Constant,
    Unlowerable,
    Value,
    axes_of,
    contiguous,
    is_wide,
    rearrange_value,
)
from onepass.step.replay import graph_named

# Function names in `formulas` that differ from the names of the operations.
_OTHER_NAMES = {
    "AddV2": "Add", "BiasAdd": "Add", "Div": "RealDiv", "Mod": "FloorMod", "Inv": "Reciprocal",
    "Round": "Rint", "SelectV2": "Select",
}  # fmt: skip
_COMPOSED = ("Gate", "Copy")
_SAME = (
    "Identity", "IdentityN", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape",
    "Snapshot", "NoOp", "Assert",
)  # fmt: skip


@rule("Case", "StatelessCase")
def _branch(lowering: Lowering, op: tf.Operation, inputs: list[Any]) -> list[Any]:
    graphs = op.get_attr("branches")
    number = lowering.choose(inputs[0])
    chosen = graphs[number if 0 <= number < len(graphs) else -1]
    return lowering.call(graph_named(op.graph, chosen.name), inputs[1:])


_POWERS = {1.0: "Copy", 2.0: "Square", 0.5: "Sqrt", -0.5: "Rsqrt", -1.0: "Reciprocal"}


@rule("Pow")
def _power(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    base, exponent = inputs
    is_known = isinstance(exponent, Constant) and exponent.size == 1
    # An exponent with more axes than its base would add axes.
    if is_known and len(exponent.shape) <= len(base.shape):
        number = float(whole(exponent).item())
        if number == 3.0:
            return [lowering.map("Mul", lowering.map("Square", base), base)]
        if number in _POWERS:
            return [lowering.map(_POWERS[number], base)]
    return [lowering.map("Pow", base, exponent)]


@rule(*(name for name in FUNCTIONS if name not in (*_COMPOSED, "Pow")), *_OTHER_NAMES)
def _function(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    name = _OTHER_NAMES.get(op.type, op.type)
    if op.type == "BiasAdd" and op.get_attr("data_format") != b"NHWC":
        raise Unlowerable("channels are not last")
    if op.type == "Select" and inputs[0].shape != inputs[1].shape and inputs[0].shape:
        raise Unlowerable("a choice of whole rows")
    return [lowering.map(name, *inputs)]


@rule(*_SAME)
def _same(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return inputs[: len(op.outputs)]


@rule("Cast")
def _cast(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    dtype = np.dtype(op.outputs[0].dtype.as_numpy_dtype)
    if dtype not in KNOWN and not isinstance(inputs[0], Constant):
        raise Unlowerable(f"numbers of type {dtype.name}")
    return [cast(lowering, inputs[0], dtype)]


def cast(lowering: Lowering, given: Any_Value, dtype: np.dtype) -> Any_Value:
    """Return a value converted to a dtype."""
    if isinstance(given, Constant):
        return Constant(given.array.astype(dtype))
    whole = np.issubdtype(dtype, np.integer) and np.issubdtype(given.dtype, np.floating)
    if whole:
        given = lowering.value(lowering.map("Trunc", given))
    if dtype == np.dtype(bool):
        return lowering.map("NotEqual", given, Constant(np.zeros([], given.dtype)))
    made = lowering.doubles(given) if is_wide(dtype) else lowering.floats(given, dtype)
    return made if isinstance(made, Constant) else dataclasses.replace(made, dtype=dtype)


@rule("AddN")
def _add_all(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return [functools.reduce(functools.partial(lowering.map, "Add"), inputs)]


# Operations of several functions: of `Lowering.map`, the operation and its inputs.
_COMPOSITIONS: dict[str, Callable[..., Any_Value]] = {
    "ClipByValue": lambda f, op, x, low, high: f("Maximum", f("Minimum", x, high), low),
    "DivNoNan": lambda f, op, x, y: _unless_zero(f, y, f("RealDiv", x, y)),
    "MulNoNan": lambda f, op, x, y: _unless_zero(f, y, f("Mul", x, y)),
    "Xlogy": lambda f, op, x, y: _unless_zero(f, x, f("Mul", x, f("Log", y))),
    "Xdivy": lambda f, op, x, y: _unless_zero(f, x, f("RealDiv", x, y)),
    "LeakyRelu": lambda f, op, x: _by_sign(f, x, x, f("Mul", x, _float(op.get_attr("alpha")))),
    "Selu": lambda f, op, x: _by_sign(
        f,
        x,
        f("Mul", x, _float(1.0507009873554805)),
        f("Mul", f("Expm1", x), _float(1.7580993408473766)),
    ),
}


@rule(*_COMPOSITIONS)
def _compose(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return [_COMPOSITIONS[op.type](lowering.map, op, *inputs)]


def _float(value: float) -> Constant:
    return Constant(np.float32(value))


def _by_sign(
    function: Callable[..., Any_Value], test: Any_Value, above: Any_Value, below: Any_Value
) -> Any_Value:
    return function("Select", function("Greater", test, _float(0.0)), above, below)


def _unless_zero(function: Callable[..., Any_Value], test: Any_Value, made: Any_Value) -> Any_Value:
    zero = Constant(np.zeros([], test.dtype))
    return function("Select", function("Equal", test, zero), zero, made)


def whole(given: Any_Value, what: str = "a size or an axis") -> np.ndarray:
    """Return the array of a constant; raise Unlowerable for a value that varies by step."""
    if not isinstance(given, Constant):
        raise Unlowerable(f"{what} that changes from step to step")
    return given.array


# Operations whose results are known, given their lowered inputs.
_CONSTANTS: dict[str, Callable[..., list]] = {
    "Const": lambda op: [tf.make_ndarray(op.get_attr("value"))],
    **dict.fromkeys(("Shape", "ShapeN"), lambda op, *given: [
        np.array(each.shape, op.get_attr("out_type").as_numpy_dtype) for each in given
    ]),
    "Size": lambda op, given: [np.int32(given.size)],
    "Rank": lambda op, given: [np.int32(len(given.shape))],
    "ZerosLike": lambda op, given: [np.zeros(given.shape, given.dtype)],
    "OnesLike": lambda op, given: [np.ones(given.shape, given.dtype)],
    "Range": lambda op, *given: [
        np.arange(*(whole(each).item() for each in given), dtype=given[0].dtype)
    ],
}  # fmt: skip


@rule(*_CONSTANTS)
def _known(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return [Constant(array) for array in _CONSTANTS[op.type](op, *inputs)]


@rule("ReadVariableOp")
def _read_variable(lowering: Lowering, op: tf.Operation, inputs: list[Resource]) -> list[Any_Value]:
    return [Constant(lowering.variable(inputs[0], op.get_attr("dtype")))]


@rule("Reshape")
def _reshape(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return [reshape_value(lowering, inputs[0], [int(size) for size in whole(inputs[1])])]


def reshape_value(lowering: Lowering, given: Any_Value, shape: list[int]) -> Any_Value:
    """Reshape a value."""
    if isinstance(given, Value) and not given.contiguous:
        made = rearrange_value(given, lambda x: x.reshape(shape))
        if isinstance(made, Value):
            return made
        given = lowering.materialise_value(given)
    return lowering.arrange_entries(given, lambda x: x.reshape(shape))


# Operations that arrange the entries of their first input, given arrays for the others.
_ARRANGEMENTS: dict[str, Callable[..., np.ndarray]] = {
    "ExpandDims": lambda op, x, axis: np.expand_dims(x, int(axis)),
    "Squeeze": lambda op, x: np.squeeze(x, tuple(op.get_attr("squeeze_dims")) or None),
    "Transpose": lambda op, x, order: x.transpose(order),
    "BroadcastTo": lambda op, x, shape: np.broadcast_to(x, shape),
    "Tile": lambda op, x, times: np.tile(x, times),
    "ReverseV2": lambda op, x, axes: np.flip(x, tuple(axes)),
    "Roll": lambda op, x, shift, axis: np.roll(x, tuple(np.ravel(shift)), tuple(np.ravel(axis))),
    "MatrixDiagPartV3": lambda op, x, k, padding: _main_diagonal(x, k),
    "MirrorPad": lambda op, x, widths: np.pad(
        x, widths, "reflect" if op.get_attr("mode") == b"REFLECT" else "symmetric"
    ),
}


@rule(*_ARRANGEMENTS)
def _arrange(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    known = [whole(each) for each in inputs[1:]]
    return [lowering.arrange_entries(inputs[0], lambda x: _ARRANGEMENTS[op.type](op, x, *known))]


def _main_diagonal(x: np.ndarray, k: np.ndarray) -> np.ndarray:
    if np.any(k):
        raise Unlowerable("a diagonal other than the main one")
    return np.diagonal(x, 0, -2, -1)


@rule("Fill")
def _fill(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    shape = whole(inputs[0])
    return [lowering.arrange_entries(inputs[1], lambda x: np.broadcast_to(x, shape))]


@rule("Split")
def _split(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axis, count = int(whole(inputs[0])), int(op.get_attr("num_split"))
    return _parts(lowering, inputs[1], [inputs[1].shape[axis] // count] * count, axis)


@rule("SplitV")
def _split_sizes(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axis = int(whole(inputs[2]))
    sizes = [int(size) for size in whole(inputs[1])]
    rest = inputs[0].shape[axis] - sum(size for size in sizes if size >= 0)
    return _parts(lowering, inputs[0], [rest if s < 0 else s for s in sizes], axis)


def _parts(lowering: Lowering, given: Any_Value, sizes: list[int], axis: int) -> list[Any_Value]:
    made, start = [], 0
    for size in sizes:
        take = functools.partial(np.take, indices=np.arange(start, start + size), axis=axis)
        if size:
            made.append(lowering.arrange_entries(given, take))
        else:  # used only for its shape
            made.append(Constant(take(np.zeros(given.shape, given.dtype))))
        start += size
    return made


@rule("Unpack")
def _unpack(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axis = int(op.get_attr("axis"))
    return [
        lowering.arrange_entries(inputs[0], functools.partial(np.take, indices=index, axis=axis))
        for index in range(inputs[0].shape[axis])
    ]


@rule("Pack")
def _pack(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axis = int(op.get_attr("axis"))
    if all(isinstance(each, Constant) for each in inputs):
        return [Constant(np.stack([whole(each) for each in inputs], axis))]
    wider = [lowering.arrange_entries(each, lambda x: np.expand_dims(x, axis)) for each in inputs]
    made = concatenate_values(lowering, wider, axis)
    if not inputs[0].shape and isinstance(made, Value):
        lowering.packed[made.buffer] = list(inputs)
    return [made]


@rule("ConcatV2")
def _concat(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    made = concatenate_values(lowering, inputs[:-1], int(whole(inputs[-1])))
    if isinstance(made, Value) and all(each.shape == (1,) for each in inputs[:-1]):
        lowering.packed[made.buffer] = [
            lowering.arrange_entries(each, lambda x: x.reshape([])) for each in inputs[:-1]
        ]
    return [made]


def concatenate_values(lowering: Lowering, parts: list[Any_Value], axis: int) -> Any_Value:
    """Concatenate values along an axis."""
    parts = [part for part in parts if part.size]
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Constant) for part in parts):
        return Constant(np.concatenate([whole(part) for part in parts], axis))
    shape = list(parts[0].shape)
    axis %= len(shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return fill_parts(lowering, shape, parts, axis)


def fill_parts(lowering: Lowering, shape: list[int], parts: list[Any_Value], axis: int) -> Value:
    """Return a new value that is filled with parts in sequence along an axis."""
    values = [lowering.value(part) for part in parts]
    places = [(x.buffer.number, x.start, x.shape, x.strides) for x in values]
    key = ("joined", tuple(shape), axis, tuple(places))
    found = lowering.joined.get(key)
    if found is not None:
        return found
    out = contiguous(shape, parts[0].dtype)
    start = 0
    for value in values:
        step = out.strides[axis] if out.shape[axis] > 1 else 1
        size = value.shape[axis]
        target = Value(out.buffer, start * step, value.shape, out.strides, out.dtype)
        lowering.copy_value(target, value, fills=True)
        start += size
    lowering.joined[key] = out
    return out


@rule("Pad", "PadV2")
def _pad(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    widths = whole(inputs[1])
    fill = whole(inputs[2]) if op.type == "PadV2" else np.zeros([], inputs[0].dtype)
    if isinstance(inputs[0], Constant):
        return [Constant(np.pad(inputs[0].array, widths, constant_values=fill))]
    made: Any_Value = inputs[0]
    for axis, (front, after) in enumerate(widths):
        parts: list[Any_Value] = [made]
        for place, width in ((0, front), (len(parts) + 1, after)):
            if width > 0:
                shape = [*made.shape[:axis], int(width), *made.shape[axis + 1 :]]
                parts.insert(place, Constant(np.full(shape, fill, made.dtype)))
        made = concatenate_values(lowering, parts, axis)
    return [made]


def slicing(op: tf.Operation, begin: Any, end: Any, steps: Any) -> tuple:
    """Return the NumPy index equivalent to a strided slice."""
    masks = {
        name: int(op.get_attr(f"{name}_mask"))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    index: list[Any] = []
    for i, (first, last, step) in enumerate(zip(begin, end, steps, strict=True)):
        bit = 1 << i
        if masks["ellipsis"] & bit:
            index.append(Ellipsis)
        elif masks["new_axis"] & bit:
            index.append(np.newaxis)
        elif masks["shrink_axis"] & bit:
            index.append(int(first))
        else:
            low = None if masks["begin"] & bit else int(first)
            high = None if masks["end"] & bit else int(last)
            index.append(slice(low, high, int(step)))
    return tuple(index)


MOST_SORTED = 128  # largest number of entries that are put in order
_CODES = {"Sum": 0, "Mean": 1, "Max": 2, "Min": 3, "Prod": 4, "Any": 2, "All": 3}
_NUMPY: dict[str, Callable[..., Any]] = {
    "Sum": np.sum, "Mean": np.mean, "Max": np.max, "Min": np.min, "Prod": np.prod, "Any": np.any,
    "All": np.all,
}  # fmt: skip


@rule(*_CODES)
def _reduction(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axes = [int(axis) for axis in np.ravel(whole(inputs[1]))]
    return [reduce_axes(lowering, op.type, inputs[0], axes, op.get_attr("keep_dims"))]


def reduce_axes(
    lowering: Lowering, name: str, given: Any_Value, axes: Sequence[int], keep: bool
) -> Any_Value:
    """Return the named reduction over axes, such as a sum or a maximum."""
    rank = len(given.shape)
    axes = sorted({axis % rank for axis in axes}) if rank else []
    if isinstance(given, Constant):
        made = _NUMPY[name](given.array, axis=tuple(axes), keepdims=keep)
        return Constant(np.asarray(made, given.dtype))
    others = [axis for axis in range(rank) if axis not in axes]
    shape = [given.shape[axis] for axis in others]
    kept = [1 if axis in axes else size for axis, size in enumerate(given.shape)]
    value, found = given, None
    for _ in range(2):
        found = _three_axes(value, others, axes)
        if found:
            break
        order = [*others, *axes]
        turned = lowering.arrange_entries(value, functools.partial(np.transpose, axes=order))
        value = lowering.materialise_value(lowering.value(turned))
        others, axes = list(range(len(others))), list(range(len(others), rank))
    if not found:
        raise Unlowerable("a reduction along axes between others")
    outer, inner, along = found
    out = contiguous(shape, given.dtype)
    numbers = [_CODES[name], given.wide, outer[0], along[0], inner[0], outer[1], along[1], inner[1]]
    limited = 3 if value.filled is not None and axes == [value.filled] else None
    made = lowering.assembly.add(Op.REDUCE, out, [value], numbers, limited=limited)
    return reshape_value(lowering, made, kept) if keep else made


def _three_axes(value: Value, others: Sequence[int], axes: Sequence[int]) -> tuple[Any, ...] | None:
    """Return (size, stride) of two kept axes and of the reduced axis; None if there are more."""
    stay, go = (
        axes_of([value.shape[i] for i in part], [value.strides[i] for i in part])
        for part in (others, axes)
    )
    if len(stay) > 2 or len(go) > 1:
        return None
    stay = [*[(1, 0)] * (2 - len(stay)), *stay]
    return stay[0], stay[1], (go or [(1, 1)])[0]


def _last(lowering: Lowering, given: Value, axis: int) -> tuple[Value, list[tuple[int, ...]]]:
    turned = lowering.value(lowering.arrange_entries(given, lambda x: np.moveaxis(x, axis, -1)))
    before = axes_of(turned.shape[:-1], turned.strides[:-1])
    if len(before) > 1:
        turned = lowering.materialise_value(turned)
        before = axes_of(turned.shape[:-1], turned.strides[:-1])
    return turned, before or [(1, 0)]


@rule("ArgMax", "ArgMin")
def _argmax(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axis = int(whole(inputs[1])) % len(inputs[0].shape)
    dtype = op.get_attr("output_type").as_numpy_dtype
    if isinstance(inputs[0], Constant):
        find = np.argmax if op.type == "ArgMax" else np.argmin
        return [Constant(find(inputs[0].array, axis).astype(dtype))]
    turned, ((outer, step),) = _last(lowering, inputs[0], axis)
    out = contiguous(turned.shape[:-1], dtype)
    numbers = [turned.wide, outer, turned.shape[-1], step, turned.strides[-1], op.type == "ArgMin"]
    return [lowering.assembly.add(Op.ARGMAX, out, [turned], numbers)]


@rule("TopKV2")
def _top_k(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    """Return the largest entries in order, and their indices: entries by the number above them."""
    given, count = lowering.value(inputs[0]), int(whole(inputs[1]))
    size, number = given.shape[-1], np.dtype(np.float32)
    if size > MOST_SORTED:
        raise Unlowerable(f"more than {MOST_SORTED} numbers in order")
    one = lowering.arrange_entries(given, lambda x: x[..., np.newaxis])
    other = lowering.arrange_entries(given, lambda x: x[..., np.newaxis, :])
    above = cast(lowering, lowering.map("Greater", other, one), number)
    before = Constant(np.tril(np.ones([size, size], np.float32), -1))
    equal = cast(lowering, lowering.map("Equal", other, one), number)
    above = lowering.map("Add", above, lowering.map("Mul", equal, before))
    rank = reduce_axes(lowering, "Sum", above, [-1], False)
    row = lowering.arrange_entries(rank, lambda x: x[..., np.newaxis, :])
    chosen = lowering.map("Equal", row, Constant(np.arange(count, dtype=number)[:, None]))
    values = lowering.map("Select", chosen, other, Constant(np.zeros([], given.dtype)))
    places = lowering.map(
        "Mul", cast(lowering, chosen, number), Constant(np.arange(size, dtype=number))
    )
    index = cast(lowering, reduce_axes(lowering, "Sum", places, [-1], False), np.dtype(np.int32))
    return [reduce_axes(lowering, "Sum", values, [-1], False), index]


@rule("Cumsum", "Cumprod")
def _lower_cumulative(
    lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]
) -> list[Any_Value]:
    axis = int(whole(inputs[1])) % len(inputs[0].shape)
    given = lowering.value(inputs[0])
    turned, ((outer, step),) = _last(lowering, given, axis)
    out = contiguous(turned.shape, given.dtype)
    code = _CODES["Sum" if op.type == "Cumsum" else "Prod"]
    numbers = [given.wide, outer, turned.shape[-1], step, turned.strides[-1], code]
    numbers += [op.get_attr("exclusive"), op.get_attr("reverse")]
    made = lowering.assembly.add(Op.CUMULATE, out, [turned], numbers)
    return [lowering.arrange_entries(made, lambda x: np.moveaxis(x, -1, axis))]


@rule("Softmax")
def _softmax(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    given = lowering.value(inputs[0])
    if given.wide:
        return [_softmax_of_doubles(lowering, given)]
    if given.shape[-1] > 1 and given.strides[-1] != 1:
        given = lowering.materialise_value(given)
    turned, ((outer, step),) = _last(lowering, given, -1)
    pitch = pad_channels(turned.shape[-1]) + LANES  # with room for one more number per row
    out = contiguous([outer, turned.shape[-1]], np.float32, pitch=pitch)
    limited = 1 if turned.filled == len(turned.shape) - 1 else None
    out = dataclasses.replace(out, filled=None if limited is None else 1)
    numbers = [outer, turned.shape[-1], step, pitch]
    made = lowering.assembly.add(Op.SOFTMAX, out, [turned], numbers, limited=limited)
    return [reshape_value(lowering, made, list(given.shape))]


def _softmax_of_doubles(lowering: Lowering, given: Value) -> Any_Value:
    largest = reduce_axes(lowering, "Max", given, [-1], True)
    powers = lowering.map("Exp", lowering.map("Sub", given, largest))
    return lowering.map("RealDiv", powers, reduce_axes(lowering, "Sum", powers, [-1], True))


@rule("LogSoftmax")
def _log_softmax(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    shifted = lowering.map("Sub", inputs[0], reduce_axes(lowering, "Max", inputs[0], [-1], True))
    total = reduce_axes(lowering, "Sum", lowering.map("Exp", shifted), [-1], True)
    return [lowering.map("Sub", shifted, lowering.map("Log", total))]


@rule("OneHot")
def _one_hot(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    given, depth, on, off = inputs
    if int(op.get_attr("axis")) not in (-1, len(given.shape)):
        raise Unlowerable("its axis is not the last one")
    count = int(whole(depth))
    index = lowering.arrange_entries(given, lambda x: x[..., np.newaxis])
    if count <= 1 << 24:  # exact in float32
        index = cast(lowering, index, np.dtype(np.float32))
    test = lowering.map("Equal", index, Constant(np.arange(count, dtype=index.dtype)))
    known = isinstance(on, Constant) and isinstance(off, Constant)
    if known and whole(on) == 1 and whole(off) == 0:
        return [cast(lowering, test, on.dtype)]
    return [lowering.map("Select", test, on, off)]


@rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _matmul(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    flags = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    first = "ba" if op.get_attr(flags[0]) else "ab"
    second = "cb" if op.get_attr(flags[1]) else "bc"
    rank = max(len(each.shape) for each in inputs) - 2
    outer = "".join(chr(ord("d") + axis) for axis in range(rank))
    terms = [
        outer[rank + 2 - len(each.shape) :] + own
        for each, own in zip(inputs, (first, second), strict=True)
    ]
    return [sum_products(lowering, inputs, terms, outer + "ac")]


@rule("Einsum")
def _einsum(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    terms, result = op.get_attr("equation").decode().split("->")
    named = terms.split(",")
    if "." in terms:
        named, result = _spell_ellipsis(named, result, [len(each.shape) for each in inputs])
    if any(len(set(term)) < len(term) for term in named):
        raise Unlowerable("a diagonal")
    return [sum_products(lowering, inputs, named, result)]


def _spell_ellipsis(terms: list[str], result: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return an einsum's terms and result with unused letters in place of the ellipsis."""
    most = max(rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True))
    free = [letter for letter in "zyxwvutsrq" if letter not in "".join([*terms, result])]
    letters = "".join(free[:most])
    made = [
        term.replace("...", letters[most - (rank - len(term.replace("...", ""))) :])
        for term, rank in zip(terms, ranks, strict=True)
    ]
    return made, result.replace("...", letters)


def sum_products(
    lowering: Lowering, inputs: list[Any_Value], terms: list[str], result: str
) -> Any_Value:
    """Return the sum of products that einsum terms describe."""
    if all(isinstance(each, Constant) for each in inputs):
        arrays = [each.array for each in inputs if isinstance(each, Constant)]
        return Constant(np.einsum(",".join(terms) + "->" + result, *arrays))
    inputs, terms = _without_lone(lowering, inputs, terms, result)
    if len(inputs) == 1:
        order = [terms[0].index(letter) for letter in result]
        return lowering.arrange_entries(inputs[0], lambda x: x.transpose(order))
    if len(inputs) > 2:
        raise Unlowerable("a product of more than two tensors")
    sizes = {
        letter: size
        for term, each in zip(terms, inputs, strict=True)
        for letter, size in zip(term, each.shape, strict=True)
        if size > 1
    }
    inner = [x for x in terms[0] if x in terms[1] and x not in result]
    both = [x for x in terms[0] if x in terms[1] and x in result]
    alone = [[x for x in term if x not in other] for term, other in (terms, terms[::-1])]
    sized = {letter: sizes.get(letter, 1) for letter in "".join(terms)}
    shared = [x for x in both if sized[x] > 1]
    product = _product(lowering, inputs, terms, (both, alone, inner), sized, bool(shared))
    letters = [*both, *alone[0], *alone[1]]
    made = reshape_value(lowering, product, [sized[x] for x in letters])
    order = [letters.index(letter) for letter in result]
    return lowering.arrange_entries(made, lambda x: x.transpose(order))


def _without_lone(
    lowering: Lowering, inputs: list[Any_Value], terms: list[str], result: str
) -> tuple[list[Any_Value], list[str]]:
    """Sum over letters that occur in one term and not in the result; return inputs and terms."""
    made, named = [], []
    for index, (each, term) in enumerate(zip(inputs, terms, strict=True)):
        others = "".join(terms[:index] + terms[index + 1 :]) + result
        lone = [axis for axis, letter in enumerate(term) if letter not in others]
        if lone:
            each = reduce_axes(lowering, "Sum", each, lone, False)
            term = "".join(letter for letter in term if letter in others)
        made.append(each)
        named.append(term)
    return made, named


def _product(
    lowering: Lowering,
    inputs: Sequence[Any_Value],
    terms: Sequence[str],
    letters: tuple[Any, ...],
    sized: dict[str, int],
    is_batched: bool,
) -> Any_Value:
    both, (left, right), inner = letters
    groups = (both, left, inner), (both, inner, right)
    arranged = []
    for each, term, group in zip(inputs, terms, groups, strict=True):
        order = [term.index(x) for part in group for x in part]
        shape = [sized[x] for part in group for x in part]
        turned = lowering.arrange_entries(each, functools.partial(np.transpose, axes=order))
        if list(turned.shape) != shape:
            turned = lowering.arrange_entries(
                turned, functools.partial(np.broadcast_to, shape=shape)
            )
        counts = [int(np.prod([sized[x] for x in part], dtype=int)) for part in group]
        arranged.append(reshape_value(lowering, turned, counts))
    first, second = arranged
    if is_wide(first.dtype) or is_wide(second.dtype):
        return _dot_of_doubles(lowering, first, second)
    if not is_batched:
        flat = [reshape_value(lowering, each, list(each.shape[1:])) for each in arranged]
        if isinstance(flat[1], Constant):
            return lowering.product(lowering.value(flat[0]), flat[1].array)
        if isinstance(flat[0], Constant):
            turned = lowering.arrange_entries(flat[1], lambda x: x.T)
            made = lowering.product(lowering.value(turned), flat[0].array.T)
            return lowering.arrange_entries(made, lambda x: x.T)
    return _dot(lowering, lowering.value(first), lowering.value(second))


def _dot_of_doubles(lowering: Lowering, first: Any_Value, second: Any_Value) -> Any_Value:
    """Return the product [groups, rows, columns] of doubles or whole numbers."""
    left = lowering.arrange_entries(first, lambda x: x[:, :, np.newaxis])
    right = lowering.arrange_entries(second, lambda x: x.swapaxes(1, 2)[:, np.newaxis])
    return reduce_axes(lowering, "Sum", lowering.map("Mul", left, right), [3], False)


def _dot(lowering: Lowering, first: Value, second: Value) -> Value:
    """Return the product [groups, rows, columns] of two values that are not constant."""
    groups, rows, inner = first.shape
    columns = second.shape[2]
    out = contiguous([groups, rows, columns], np.float32, pitch=pad_channels(columns))
    steps = [
        1 if size == 1 and place == 2 else step
        for each in (first, second)
        for place, (size, step) in enumerate(zip(each.shape, each.strides, strict=True))
    ]
    numbers = [groups, rows, inner, columns, *steps, pad_channels(columns)]
    limited = None
    if first.filled == 2 or second.filled == 1:
        limited = 2
    elif second.filled == 2:
        limited, out = 3, dataclasses.replace(out, filled=2)
    return lowering.assembly.add(Op.DOT, out, [first, second], numbers, limited=limited)


@rule("Conv2D")
def _convolution(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    patches, kernel, shape = _patches(lowering, op, inputs)
    if patches.shape[-1] != kernel.shape[2]:
        raise Unlowerable("groups")
    rows = reshape_value(lowering, patches, [shape[0] * shape[1], -1])
    made = lowering.product(lowering.value(rows), kernel.reshape([-1, kernel.shape[3]]))
    return [reshape_value(lowering, made, [1, *shape, kernel.shape[3]])]


@rule("DepthwiseConv2dNative")
def _depthwise(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    patches, kernel, shape = _patches(lowering, op, inputs)
    height, width, channels, each = kernel.shape
    wide = reshape_value(lowering, patches, [shape[0] * shape[1], height * width, channels, 1])
    taps = Constant(kernel.reshape([height * width, channels, each]))
    made = reduce_axes(lowering, "Sum", lowering.map("Mul", wide, taps), [1], False)
    return [reshape_value(lowering, made, [1, *shape, channels * each])]


def _patches(
    lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]
) -> tuple[Value, np.ndarray, list[int]]:
    """Return patches [height, width, taps, taps, channels], the kernel, and [height, width]."""
    given, kernel = lowering.value(inputs[0]), inputs[1]
    if op.get_attr("data_format") != b"NHWC" or given.shape[0] != 1 or given.wide:
        raise Unlowerable("channels are not last")
    if not isinstance(kernel, Constant):
        raise Unlowerable("a kernel that changes from step to step")
    axes, spans = [], []
    for axis in (0, 1):
        taps, size = kernel.shape[axis], given.shape[1 + axis]
        step, dilation = op.get_attr("strides")[1 + axis], op.get_attr("dilations")[1 + axis]
        reach = (taps - 1) * dilation + 1
        front, after = _padding(op, axis, size, reach, step)
        count = (size + front + after - reach) // step + 1
        axes.append(np.arange(count)[:, None] * step + np.arange(taps) * dilation - front)
        spans.append(count)
    rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
    inside = (rows >= 0) & (rows < given.shape[1]) & (columns >= 0) & (columns < given.shape[2])
    channels = given.shape[3]
    place = (rows * given.shape[2] + columns)[..., None] * channels + np.arange(channels)
    if not inside.all():  # append one zero to the entries
        flat = reshape_value(lowering, given, [given.size])
        zero = Constant(np.zeros([1], np.float32))
        given = lowering.value(concatenate_values(lowering, [flat, zero], 0))
        place = np.where(inside[..., None], place, given.size - 1)
    entries = lowering.value(reshape_value(lowering, given, [given.size]))
    made = lowering.arrange_entries(entries, lambda x: x[place])
    return lowering.value(made), kernel.array, spans


def _padding(op: tf.Operation, axis: int, size: int, reach: int, step: int) -> tuple[int, int]:
    kind = op.get_attr("padding")
    if kind == b"VALID":
        return 0, 0
    if kind == b"EXPLICIT":
        widths = op.get_attr("explicit_paddings")
        return widths[2 + 2 * axis], widths[3 + 2 * axis]
    total = max((-(-size // step) - 1) * step + reach - size, 0)
    return total // 2, total - total // 2


MOST_WRITES = 16  # largest number of rows in one update


def components(lowering: Lowering, given: Any_Value) -> list[Any_Value]:
    """Return the entries of a small vector, each a constant or a value."""
    if isinstance(given, Constant):
        return [Constant(each) for each in given.array]
    if given.buffer in lowering.packed and given.start == 0:
        return lowering.packed[given.buffer]
    return [
        lowering.arrange_entries(given, operator.itemgetter((i, ...)))
        for i in range(given.shape[0])
    ]


@rule("StridedSlice")
def _lower_strided_slice(
    lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]
) -> list[Any_Value]:
    given, begin, end, steps = inputs
    if all(isinstance(each, Constant) for each in (begin, end, steps)):
        index = slicing(op, whole(begin), whole(end), whole(steps))
        return [lowering.arrange_entries(given, lambda x: x[index])]
    firsts, stops = components(lowering, begin), components(lowering, end)
    changing = [i for i, first in enumerate(firsts) if not isinstance(first, Constant)]
    found = changing[0] if changing else 0
    before = slice(0, found)
    if len(changing) > 1 or _bit(op, "ellipsis", before) or _bit(op, "new_axis", before):
        raise Unlowerable("a slice at several indices that change from step to step")
    lone = _bit(op, "shrink_axis", slice(found, found + 1))
    dropped = sum(_bit(op, "shrink_axis", slice(i, i + 1)) for i in range(found))
    count = 1 if lone else op.outputs[0].shape[found - dropped]
    if not changing or count is None:
        raise Unlowerable("a slice whose length changes from step to step")
    slot = lowering.slot(lowering.value(firsts[found]))
    part = read(lowering, lowering.value(given), slot, found, count)
    known = [
        [int(whole(x)) if isinstance(x, Constant) else 0 for x in each] for each in (firsts, stops)
    ]
    known[1][found] = 1 if lone else count
    index = slicing(op, known[0], known[1], whole(steps))
    return [lowering.arrange_entries(part, lambda x: x[index])]


def _bit(op: tf.Operation, name: str, places: slice) -> bool:
    mask = int(op.get_attr(f"{name}_mask"))
    return any(mask >> i & 1 for i in range(places.start, places.stop))


@rule("Slice")
def _slice(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    made = inputs[0]
    sizes = [int(size) for size in whole(inputs[2])]
    for axis, first in enumerate(components(lowering, inputs[1])):
        if isinstance(first, Constant):
            start = int(first.array)
            stop = made.shape[axis] if sizes[axis] < 0 else start + sizes[axis]
            index = (*[slice(None)] * axis, slice(start, stop))
            made = lowering.arrange_entries(made, operator.itemgetter(index))
        else:
            made = read(lowering, lowering.value(made), lowering.slot(first), axis, sizes[axis])
    return [made]


def read(lowering: Lowering, given: Value, slot: Slot, axis: int, count: int) -> Value:
    """Return `count` rows of an axis, starting at the index in `slot`."""
    given, (outer, outer_step), inner = _around(lowering, given, axis)
    size, step = given.shape[axis], given.strides[axis]
    shape = [*given.shape[:axis], count, *given.shape[axis + 1 :]]
    out = contiguous(shape, given.dtype)
    if count > 1 and step != inner:
        raise Unlowerable("rows that are not adjacent")
    numbers = [2 if given.wide else 1, outer, count * inner, outer_step, step]
    numbers += [slot.add, slot.modulo, size - count]
    return lowering.assembly.add(Op.READ, out, [given, slot.place], numbers)


def _around(lowering: Lowering, given: Value, axis: int) -> tuple[Value, tuple[int, int], int]:
    for _ in range(2):
        before = axes_of(given.shape[:axis], given.strides[:axis]) or [(1, 0)]
        after = axes_of(given.shape[axis + 1 :], given.strides[axis + 1 :]) or [(1, 1)]
        if len(before) == 1 and len(after) == 1 and after[0][1] == 1:
            return given, (before[0][0], before[0][1]), after[0][0]
        given = lowering.materialise_value(given)
    raise Unlowerable("rows of scattered numbers")


@rule("GatherV2", "Gather", "ResourceGather", "GatherNd")
def _gather(lowering: Lowering, op: tf.Operation, inputs: list[Any]) -> list[Any_Value]:
    given, index = inputs[0], inputs[1]
    if isinstance(given, Resource):
        given = Constant(lowering.variable(given, op.get_attr("dtype")))
    if op.type == "GatherNd":
        given, index = _merge_indices(lowering, given, index)
    axis = int(whole(inputs[2])) if op.type == "GatherV2" else 0
    axis %= len(given.shape)
    if op.type in ("GatherV2", "ResourceGather") and (batch := int(op.get_attr("batch_dims"))):
        if axis != batch:
            raise Unlowerable("indices of an axis behind others")
        return [_gather_batch(lowering, given, index, batch)]
    return [_gather_axis(lowering, given, index, axis)]


def _gather_axis(lowering: Lowering, given: Any_Value, index: Any_Value, axis: int) -> Any_Value:
    if isinstance(index, Constant):
        return lowering.arrange_entries(given, lambda x: np.take(x, index.array, axis))
    shape = [*given.shape[:axis], *index.shape, *given.shape[axis + 1 :]]
    if index.size == 1:
        at = lowering.value(reshape_value(lowering, index, []))
        part = read(lowering, lowering.value(given), lowering.slot(at), axis, 1)
        return reshape_value(lowering, part, shape)
    return reshape_value(lowering, _rows(lowering, lowering.value(given), index, axis), shape)


def _gather_batch(lowering: Lowering, given: Any_Value, index: Any_Value, batch: int) -> Any_Value:
    rows, size = math.prod(given.shape[:batch]), given.shape[batch]
    flat = reshape_value(lowering, given, [rows * size, *given.shape[batch + 1 :]])
    if rows > 1:
        first = np.arange(0, rows * size, size).astype(index.dtype)
        first = first.reshape([*given.shape[:batch], *[1] * (len(index.shape) - batch)])
        index = lowering.map("Add", index, Constant(first))
    return _gather_axis(lowering, flat, index, 0)


def _merge_indices(
    lowering: Lowering, given: Any_Value, index: Any_Value
) -> tuple[Any_Value, Any_Value]:
    count = index.shape[-1]
    columns = [lowering.arrange_entries(index, operator.itemgetter((..., i))) for i in range(count)]
    total = columns[0]
    for column, size in zip(columns[1:], given.shape[1:count], strict=True):
        scaled = lowering.map("Mul", total, Constant(np.asarray(size, index.dtype)))
        total = lowering.map("Add", scaled, column)
    sizes = [math.prod(given.shape[:count]), *given.shape[count:]]
    return reshape_value(lowering, given, sizes), total


def _rows(lowering: Lowering, given: Value, index: Value, axis: int) -> Value:
    given, (outer, _), inner = _around(lowering, given, axis)
    if outer > 1:
        raise Unlowerable("several indices along an inner axis")
    if index.wide is False:
        index = lowering.doubles(index)
    steps = axes_of(index.shape, index.strides)
    if len(steps) > 1:
        index = lowering.materialise_value(index)
        steps = axes_of(index.shape, index.strides)
    out = contiguous([index.size, inner], given.dtype)
    numbers = [2 if given.wide else 1, index.size, inner, steps[0][1], given.strides[axis]]
    numbers += [given.shape[axis] - 1]
    return lowering.assembly.add(Op.ROWS, out, [given, index], numbers)


@rule("TensorScatterUpdate")
def _scatter(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    given, index, update = inputs
    value = lowering.value(given)
    if index.shape[-1] != 1:
        raise Unlowerable("indices along several axes")
    count = index.size
    if count > MOST_WRITES:
        raise Unlowerable(f"more than {MOST_WRITES} rows at once")
    flat = reshape_value(lowering, index, [count])
    rows = reshape_value(lowering, update, [count, *value.shape[1:]])
    for i, place in enumerate(components(lowering, flat)):
        row = lowering.arrange_entries(rows, operator.itemgetter(slice(i, i + 1)))
        value = write_rows(lowering, value, lowering.value(row), place, 0)
    return [value]


@rule("XlaDynamicUpdateSlice")
def _update_slice(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    given, update = lowering.value(inputs[0]), lowering.value(inputs[1])
    changing = [
        (axis, place)
        for axis, place in enumerate(components(lowering, inputs[2]))
        if not isinstance(place, Constant) or int(place.array)
    ]
    if len(changing) != 1:
        raise Unlowerable("an update at indices along several axes")
    axis, place = changing[0]
    others = [i for i in range(len(given.shape)) if i != axis]
    if any(given.shape[i] != update.shape[i] for i in others):
        raise Unlowerable("an update of a part of the rows")
    return [write_rows(lowering, given, update, place, axis)]


def write_rows(
    lowering: Lowering, given: Value, update: Value, place: Any_Value, axis: int
) -> Value:
    """Return a value with rows replaced from an index on; whether in place is decided later."""
    update = lowering.materialise_value(update)
    at = lowering.value(place)
    slot = lowering.slot(at)
    given, (outer, outer_step), inner = _around(lowering, given, axis)
    if not given.contiguous:
        given = lowering.materialise_value(given)
    count, size, step = update.shape[axis], given.shape[axis], given.strides[axis]
    out = contiguous(given.shape, given.dtype)
    numbers = [
        2 if given.wide else 1,
        outer,
        count * inner,
        outer_step,
        step if size > 1 else inner,
    ]
    numbers += [slot.add, slot.modulo, size - count]
    lowering.assembly.add(Op.WRITE, out, [update, slot.place, given], numbers, fills=True)
    at_position = count == 1 and slot.add == 0 and lowering.counts(slot.place.buffer)
    fills_up = at_position and slot.modulo in (0, size)
    return dataclasses.replace(out, filled=axis if fills_up and size > 1 else None)
