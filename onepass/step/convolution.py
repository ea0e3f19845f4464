"""Rules for plain, dilated, depthwise and grouped convolutions; a step reads a row per tap."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from onepass.step.rowwise import rowwise
from onepass.step.rules import rule
from onepass.step.shifts import pad_stream
from onepass.step.sizes import static_value
from onepass.step.streams import Call, Node, Part, Run, Stream

CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")


@rule(*CONVOLUTIONS)
def convolution(node: Node) -> Part:
    """Return how a step runs a convolution over time and at most one other axis."""
    stream = node.only()
    if stream.axis == 0:
        return rowwise(node)
    if stream.axis == 3 or stream.is_merged:
        raise node.refusal_error("convolves over another axis that time was merged with")
    if node.op.get_attr("data_format") != b"NHWC":
        raise node.unsupported_error("its channels must come last")
    axis = stream.axis
    taps = node.op.inputs[1].shape[axis - 1]
    dilation = node.op.get_attr("dilations")[axis]
    front, after = _padding(node, axis, (taps - 1) * dilation)
    stream, delays = _windows(node, stream, taps, dilation, (front, after))
    kind = node.derive_kind(0, stream)
    # A kernel that extends only along time is a single product of all taps, which is faster.
    flat = node.op.inputs[1].shape[2 - axis] == 1 and node.op.inputs[0].shape[3 - axis] == 1
    run = _flat(node.type, axis - 1) if flat else _tapwise(node.op, axis)
    return Part([kind], run, {0: delays})


@dataclasses.dataclass(frozen=True)
class Dilated:
    """The operations into which TensorFlow splits a dilated convolution.

    `space` (SpaceToBatchND) separates time steps by their remainder modulo the dilation, `inner`
    convolves, and a BatchToSpaceND joins them again.
    """

    space: tf.Operation
    inner: tf.Operation
    between: tuple[tf.Operation, ...]

    @classmethod
    def ending_at(cls, batch: tf.Operation) -> "Dilated | None":
        """Return the dilated convolution that ends with a given BatchToSpaceND, or None."""
        chain = []
        op = batch.inputs[0].op
        while op.type in (*CONVOLUTIONS, "ExpandDims", "Squeeze"):
            chain.append(op)
            op = op.inputs[0].op
        inner = [op for op in chain if op.type in CONVOLUTIONS]
        return cls(op, inner[0], tuple(chain)) if op.type == "SpaceToBatchND" and inner else None

    @property
    def sources(self) -> list[tf.Tensor]:
        """The tensors that the convolution reads: the sequence and the kernel."""
        return [self.space.inputs[0], self.inner.inputs[1]]

    @property
    def inside(self) -> set[tf.Operation]:
        """The operations before the last one."""
        return {self.space, *self.between}

    def conv_axis(self, axis: int) -> int:
        """Return the axis of `inner` that corresponds to `axis` of the input."""
        return axis + (self.inner.inputs[0].shape.rank - self.space.inputs[0].shape.rank)


def dilated_convolution(node: Node, whole: Dilated, longer: Dilated) -> Part:
    """Return how a step runs a dilated convolution; the node is its BatchToSpaceND."""
    stream = node.only()
    axis = stream.axis
    blocks = _static_array(node, whole.space.inputs[1])
    conv_axis = whole.conv_axis(axis)
    kernel = whole.inner.inputs[1].shape
    if stream.is_merged or blocks.prod() != blocks[axis - 1] or kernel[2 - conv_axis] != 1:
        raise node.unsupported_error("it is dilated along an axis other than time")
    dilation = int(blocks[axis - 1] * whole.inner.get_attr("dilations")[conv_axis])
    pairs = (whole, node.op), (longer, node.longer)
    bounds = [_bounds(node, part, op, axis) for part, op in pairs]
    if bounds[0] != bounds[1]:
        raise node.refusal_error("depends on the length of its input")
    stream, delays = _windows(node, stream, kernel[conv_axis - 1], dilation, bounds[0])
    kind = node.derive_kind(0, stream)
    return Part([kind], _flat(whole.inner.type, conv_axis - 1), {0: delays})


def _static_array(node: Node, tensor: tf.Tensor) -> np.ndarray:
    value = static_value(tensor)
    if value is None:
        raise node.unsupported_error("an argument that must be constant is computed")
    return value


def _bounds(node: Node, whole: Dilated, batch: tf.Operation, axis: int) -> tuple[int, int]:
    """Return the numbers of zero rows before and after, except those that fill the last block."""
    paddings = _static_array(node, whole.space.inputs[2])[axis - 1]
    crops = _static_array(node, batch.inputs[2])[axis - 1]
    # Rows that fill the last block are padded first and cropped at the end.
    return int(paddings[0] - crops[0]), int(paddings[1] - crops[1])


def _windows(
    node: Node, stream: Stream, taps: int, dilation: int, around: tuple[int, int]
) -> tuple[Stream, tuple[int, ...]]:
    if any(around):
        stream = pad_stream(node, stream, *around)
    reach = (taps - 1) * dilation
    offset = (stream.offset or 0) - reach
    ahead = stream.ahead
    if offset < 0 and not any(around):
        ahead = (*ahead, f"{node.layer} drops the first {reach} of its rows")
    delays = tuple(reach - dilation * tap for tap in range(taps))
    return dataclasses.replace(stream, offset=offset, ahead=ahead), delays


def _padding(node: Node, axis: int, reach: int) -> tuple[int, int]:
    padding = node.op.get_attr("padding")
    if padding == b"SAME":
        return reach // 2, reach - reach // 2
    if padding == b"EXPLICIT":
        explicit = node.op.get_attr("explicit_paddings")
        return explicit[2 * axis], explicit[2 * axis + 1]
    return 0, 0


def _flat(type_name: str, axis: int) -> Run:
    """Return the `run` for a kernel that extends only along its `axis`: a single product."""

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        taps, kernel = inputs[0], tf.squeeze(inputs[1][0], 1 - axis)
        if type_name == "DepthwiseConv2dNative":
            products = [tap[..., tf.newaxis] * kernel[i] for i, tap in enumerate(taps)]
            total = tf.add_n(products)
            return [tf.reshape(total, [*taps[0].shape[:-1], -1])]
        groups = taps[0].shape[-1] // kernel.shape[1]
        return [_convolve_groups(taps, kernel, groups) if groups > 1 else _product(taps, kernel)]

    return run


def _product(taps: Sequence[tf.Tensor], kernel: tf.Tensor) -> tf.Tensor:
    """Return the concatenated taps times the kernel [taps, in, out]."""
    window = tf.concat(taps, -1)
    flat = tf.reshape(window, [-1, window.shape[-1]])
    product = tf.matmul(flat, tf.reshape(kernel, [-1, kernel.shape[-1]]))
    return tf.reshape(product, [*window.shape[:-1], kernel.shape[-1]])


def _convolve_groups(taps: Sequence[tf.Tensor], kernel: tf.Tensor, groups: int) -> tf.Tensor:
    """Return the sum over taps of each group's channels times its part of the kernel."""
    window = tf.stack(taps, -2)
    window = tf.reshape(window, [*window.shape[:-1], groups, -1])
    parts = tf.reshape(kernel, [*kernel.shape[:2], groups, -1])
    product = tf.einsum("...kgi,kigo->...go", window, parts)
    return tf.reshape(product, [*taps[0].shape[:-1], kernel.shape[-1]])


def _tapwise(op: tf.Operation, axis: int) -> Run:
    convolve = tf.nn.conv2d if op.type == "Conv2D" else tf.nn.depthwise_conv2d
    dilations = op.get_attr("dilations")
    padding = op.get_attr("padding").decode()
    if padding == "EXPLICIT":
        explicit = list(op.get_attr("explicit_paddings"))
        explicit[2 * axis : 2 * axis + 2] = [0, 0]
        padding = [explicit[i : i + 2] for i in range(0, 8, 2)]
    dilations = [1 if i == axis else d for i, d in enumerate(dilations)]

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        kernels = tf.split(inputs[1][0], len(inputs[0]), axis - 1)
        products = [
            convolve(tap, part, op.get_attr("strides"), padding, dilations=dilations[1:3])
            for tap, part in zip(inputs[0], kernels, strict=True)
        ]
        return [tf.add_n(products)]

    return run
