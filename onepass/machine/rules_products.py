"""Lowering rules for matrix products, einsums and convolutions."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.machine.assembly import Op
from onepass.machine.kernels import pad_channels
from onepass.machine.lowering import Lowering, rule
from onepass.machine.rules_reductions import reduce_axes
from onepass.machine.rules_shapes import concatenate_values, reshape_value
from onepass.machine.values import (
    Any_Value,
    Constant,
    Unlowerable,
    Value,
    contiguous,
)


@rule("MatMul")
def _matmul(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    first = "ba" if op.get_attr("transpose_a") else "ab"
    second = "cb" if op.get_attr("transpose_b") else "bc"
    return [sum_products(lowering, inputs, [first, second], "ac")]


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _lower_batch_matmul(
    lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]
) -> list[Any_Value]:
    rank = max(len(each.shape) for each in inputs) - 2
    outer = "".join(chr(ord("d") + axis) for axis in range(rank))
    first = "ba" if op.get_attr("adj_x") else "ab"
    second = "cb" if op.get_attr("adj_y") else "bc"
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
    if not is_batched:
        flat = [reshape_value(lowering, each, list(each.shape[1:])) for each in arranged]
        if isinstance(flat[1], Constant):
            return lowering.product(lowering.value(flat[0]), flat[1].array)
        if isinstance(flat[0], Constant):
            turned = lowering.arrange_entries(flat[1], lambda x: x.T)
            made = lowering.product(lowering.value(turned), flat[0].array.T)
            return lowering.arrange_entries(made, lambda x: x.T)
    return _dot(lowering, lowering.value(first), lowering.value(second))


def _dot(lowering: Lowering, first: Value, second: Value) -> Value:
    """Return the product [groups, rows, columns] of two values that are not constant."""
    if first.wide or second.wide:
        raise Unlowerable("a product of doubles or whole numbers")
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
    return lowering.add_instruction(Op.DOT, out, [first, second], numbers, limited)


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
