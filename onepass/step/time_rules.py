"""Rules for operations along the time axis: row-wise ones, convolutions, shifts, running sums."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.step.replay import run_op, static_value, types_of
from onepass.step.rules import rule
from onepass.step.streams import ENDLESS, Call, Kind, Node, Part, Run, Start, Stream

ELEMENTWISE = types_of("""
    Abs Acos Acosh AddN AddV2 Add Angle Asin Asinh Atan Atan2 Atanh BesselI0e BesselI1e Betainc
    BiasAdd BitwiseAnd BitwiseOr BitwiseXor Bitcast Bucketize Cast Ceil CheckNumerics
    ClipByValue Complex ComplexAbs Conj Cos Cosh DivNoNan Digamma Div Elu Equal Erf Erfc Erfinv
    Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Identity IdentityN Igamma Igammac
    Imag Inv Invert IsFinite IsInf IsNan LeakyRelu LeftShift Less LessEqual Lgamma Log Log1p
    LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter
    NotEqual OnesLike Polygamma Pow PreventGradient RealDiv Real Reciprocal Relu Relu6
    RightShift Rint Round Rsqrt Select SelectV2 Selu Sigmoid Sign Sin Sinh Softplus Softsign
    Sqrt Square SquaredDifference StopGradient Sub Tan Tanh TruncateDiv TruncateMod Xdivy Xlogy
    ZerosLike
""")
# Operations whose output must keep the time axis, or `Node.derive_kind` refuses them.
OVER_CHANNELS = types_of("""
    All Any ArgMax ArgMin BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum ExpandDims FFT IFFT
    IRFFT L2Loss LogSoftmax LowerBound MatMul MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 Max Mean
    Min OneHot Pack Prod RFFT Softmax Split SplitV Sum Tile TopKV2 Transpose Unpack UpperBound
""")
# Operations that mix the entries of their last axis.
LAST_AXIS = types_of("FFT IFFT IRFFT LogSoftmax LowerBound RFFT Softmax TopKV2 UpperBound")
# Operations whose output is equal at all time steps if their inputs are.
STILL = types_of("Fill BroadcastTo ZerosLike OnesLike Tile ExpandDims")
LIKE = ("ZerosLike", "OnesLike")


def align_streams(node: Node, streams: Sequence[Stream]) -> tuple[int | None, int, tuple[str, ...]]:
    """Return offset, end and lookahead of an output whose row i is computed from input rows i."""
    if len({(stream.outer, stream.inner) for stream in streams}) > 1:
        raise node.unsupported_error("its inputs have their axes merged in different ways")
    if len({stream.period for stream in streams}) > 1:
        raise node.unsupported_error("its inputs have different rates of time")
    ahead = tuple(dict.fromkeys(text for stream in streams for text in stream.ahead))
    offsets = [stream.offset for stream in streams if stream.offset is not None]
    if not offsets:
        return None, min(stream.end for stream in streams), ahead
    offset = min(offsets)
    ends = [s.end + s.offset - offset for s in streams if s.offset is not None]
    return offset, min(ends), ahead


def alignment(node: Node, offset: int | None) -> dict[int, tuple[int, ...]]:
    """Return the delay of each input relative to the one that is furthest ahead."""
    delays: dict[int, tuple[int, ...]] = {}
    for index, kind in enumerate(node.kinds):
        if isinstance(kind, Stream):
            late = 0 if kind.offset is None or offset is None else kind.offset - offset
            if late and kind.is_merged:
                raise node.unsupported_error("inputs with different delays have merged axes")
            delays[index] = (late,)
    return delays


@rule(*ELEMENTWISE, *OVER_CHANNELS)
def rowwise(node: Node) -> Part:
    """Return how a step runs an operation that computes each row from rows with the same index."""
    node.refuse_kinds()
    streams = node.streams()
    if node.type in LAST_AXIS and any(
        stream.axis == node.op.inputs[0].shape.rank - 1 for stream in streams[:1]
    ):
        raise node.refusal_error(f"mixes all time steps ({node.type} over the time axis)")
    offset, end, ahead = align_streams(node, streams)
    changes = {"offset": offset, "end": end, "ahead": ahead}
    kinds = [node.derive_kind(i, streams[0], **changes) for i in range(len(node.op.outputs))]
    return Part(kinds, replay_operation(node), alignment(node, offset))


def replay_operation(node: Node) -> Run:
    """Return a `run` that executes the same operation."""

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        return run_op(node.op, [delays[0] for delays in inputs])

    return run


@rule("Reshape")
def _reshape(node: Node) -> Part:
    stream = node.first()
    axes = node.moving(0)
    if len(axes) != 1:
        return Part([node.derive_kind(0, stream)], replay_operation(node))
    ends = (node.op.inputs[0].shape, stream.axis), (node.op.outputs[0].shape, axes[0])
    before = [math.prod(shape[:axis]) for shape, axis in ends]
    after = [math.prod(shape[axis + 1 :]) for shape, axis in ends]
    outer, left = divmod(before[0] * stream.outer, before[1])
    inner, right = divmod(after[0] * stream.inner, after[1])
    frame, cut = divmod(after[1], after[0] * stream.inner)
    if not left and not cut and frame > 1 and not stream.is_merged:
        return _frame_rows(node, stream, frame, outer)
    if left or right:
        raise node.refusal_error("mixes time with another axis (Reshape)")
    if outer == 1 and inner > 1 and stream.period % inner == 0:
        return _interleave_rows(node, stream, inner)
    merged_by = "" if outer * inner == 1 else stream.merged_by or node.layer
    kind = node.derive_kind(0, stream, outer=outer, inner=inner, merged_by=merged_by)
    shape, axis = node.op.outputs[0].shape.as_list(), axes[0]

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        sizes = [*shape[:axis], outer * call.rows * inner, *shape[axis + 1 :]]
        return [tf.reshape(inputs[0][0], sizes)]

    return Part([kind], run)


def _frame_rows(node: Node, stream: Stream, frame: int, outer: int) -> Part:
    """Return how a step joins `frame` rows to one of a lower rate."""
    offset = None if stream.offset is None else stream.offset + 1 - frame
    last = dataclasses.replace(stream, offset=offset)
    merged_by = "" if outer == 1 else node.layer
    kind = node.derive_kind(0, last.decimate(frame), outer=outer, merged_by=merged_by)
    shape, axis = node.op.outputs[0].shape.as_list(), node.moving(0)[0]
    sizes = [*shape[:axis], outer, *shape[axis + 1 :]]

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        return [tf.reshape(tf.concat(inputs[0], stream.axis), sizes)]

    return Part([kind], run, {0: tuple(range(frame - 1, -1, -1))})


def _interleave_rows(node: Node, stream: Stream, count: int) -> Part:
    """Return how a step takes one of `count` rows out of a row of a lower rate."""
    like = dataclasses.replace(stream, outer=1, inner=1, merged_by="").interleave(count)
    kind = node.derive_kind(0, like)
    shape, axis = node.op.outputs[0].shape.as_list(), node.moving(0)[0]
    sizes = [*shape[:axis], count, *shape[axis + 1 :]]

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        index = (call.position - like.phase) // like.period + (like.offset or 0)
        rows = tf.reshape(inputs[0][0], sizes)
        return [tf.gather(rows, [tf.math.floormod(index, count)], axis=axis)]

    return Part([kind], run)


@rule("EnsureShape")
def _same_shape(node: Node) -> Part:
    return Part([node.only()], lambda inputs, call: [inputs[0][0]], is_alias=True)


@rule("ReverseV2", "Roll")
def _turn_axes(node: Node) -> Part:
    stream, rank = node.only(), node.op.inputs[0].shape.rank
    axes = np.ravel(node.static(1 if node.type == "ReverseV2" else 2)) % rank
    if stream.axis in axes:
        text = "reverses time" if node.type == "ReverseV2" else "rolls time, which wraps around"
        raise node.refusal_error(text)
    return rowwise(node)


@rule("Squeeze")
def squeeze(node: Node) -> Part:
    """Return how a step runs a squeeze, keeping the time axis even if it has one row."""
    stream = node.only()
    shape = node.op.inputs[0].shape.as_list()
    listed = [int(axis) % len(shape) for axis in node.op.get_attr("squeeze_dims")]
    axes = listed or [axis for axis, size in enumerate(shape) if size == 1]
    kind = node.derive_kind(0, stream)
    return Part([kind], lambda inputs, call: [tf.squeeze(inputs[0][0], axes)])


@rule("BroadcastTo")
def _broadcast(node: Node) -> Part:
    stream = node.first()
    kind = node.derive_kind(0, stream)
    shape, axis = node.op.outputs[0].shape.as_list(), node.moving(0)[0]

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        return [tf.broadcast_to(inputs[0][0], [*shape[:axis], call.rows, *shape[axis + 1 :]])]

    return Part([kind], run)


def still(node: Node) -> Part:
    """Return how a step computes a tensor of equal rows that grows but ignores the sequence."""
    if node.type == "Const":
        value = static_value(node.op.outputs[0])
        axis = node.moving(0)[0]
        if value is None or (value != value.take([0], axis)).any():
            raise node.unsupported_error("it depends on the position in the sequence")
    elif node.type not in STILL:
        raise node.unsupported_error("it depends on the position in the sequence")
    axis = node.moving(0)[0]
    grown = node.longer.outputs[0].shape[axis] - node.op.outputs[0].shape[axis]
    period, left = divmod(node.lengths[1] - node.lengths[0], grown)
    stream = Stream(0, None, ENDLESS, period=1 if left or not period else period)
    kinds: list[Kind] = [node.derive_kind(0, stream)]

    def run(inputs: list[list[Any]], call: Call) -> list[tf.Tensor]:
        given = [delays[0] for delays in inputs]
        for index, tensor in enumerate(node.op.inputs):
            if given[index] is None:  # a size that grows with the length
                given[index] = tf.constant(static_value(tensor), tensor.dtype)
        whole = run_op(node.op, given)[0]
        row = tf.gather(whole, [0], axis=axis)
        return [tf.repeat(row, call.rows, axis)]

    return Part(kinds, run)


def pad_stream(node: Node, stream: Stream, front: int, after: int, was_cut: bool = False) -> Stream:
    """Return a stream padded with constant rows; it may lack time steps before if `was_cut`."""
    if front and (stream.offset or 0) < 0 and not was_cut:
        raise node.unsupported_error("it pads a sequence whose first time steps were dropped")
    offset = (stream.offset or 0) + front
    ahead = stream.ahead
    if after > 0:
        where = "on both sides" if front else "at the end"
        ahead = (*ahead, f"{node.layer} pads {where}")
    return dataclasses.replace(stream, offset=offset, ahead=ahead)


@rule("Pad", "PadV2")
def _pad(node: Node) -> Part:
    stream = node.only()
    short, long = (value[stream.axis] for value in node.bounds(1))
    if not np.array_equal(short, long):
        raise node.length_error()
    front, after = (int(rows) for rows in short)
    if stream.is_merged and (front or after):
        raise node.unsupported_error("it pads a merged axis")
    was_cut = front > 0 and (stream.offset or 0) < 0
    moved = pad_stream(node, stream, front, after, was_cut)
    kind = node.derive_kind(0, stream, offset=moved.offset, ahead=moved.ahead)
    paddings = node.bounds(1)[0].copy()
    paddings[stream.axis] = 0
    value = node.static(2) if node.type == "PadV2" else 0

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        rows = inputs[0][0]
        if paddings.any():
            rows = tf.pad(rows, paddings, constant_values=value)
        if was_cut:  # there is nothing yet of which a step could compute the first rows
            numbers = (call.position + tf.range(call.rows) - moved.phase) // moved.period
            shape = [-1 if i == moved.axis else 1 for i in range(rows.shape.rank)]
            is_padding = tf.reshape(numbers + moved.offset < front, shape)
            rows = tf.where(is_padding, tf.cast(value, rows.dtype), rows)
        return [rows]

    return Part([kind], run)


@rule("MirrorPad")
def _mirror_pad(node: Node) -> Part:
    stream = node.only()
    if node.bounds(1)[0][stream.axis].any():
        raise node.refusal_error("mirrors the start of the sequence, which reads later time steps")
    return rowwise(node)


@rule("ConcatV2")
def concatenation(node: Node) -> Part:
    """Return how a step runs a concatenation along channels, or of constant rows and a sequence."""
    axis = int(node.static(len(node.kinds) - 1)) % node.op.outputs[0].shape.rank
    axes = node.moving(0)
    if axes != [axis]:
        return rowwise(node)
    node.refuse_kinds()
    live = [index for index, kind in enumerate(node.kinds) if isinstance(kind, Stream)]
    if len(live) != 1:
        raise node.unsupported_error("it joins two sequences end to end")
    stream = node.streams()[0]
    rows = [tensor.shape[axis] for tensor in node.op.inputs[:-1]]
    moved = pad_stream(node, stream, sum(rows[: live[0]]), sum(rows[live[0] + 1 :]))
    kind = node.derive_kind(0, stream, offset=moved.offset, ahead=moved.ahead)
    return Part([kind], lambda inputs, call: [inputs[live[0]][0]])


@rule("Slice")
def _slices(node: Node) -> Part:
    stream = node.kinds[0]
    if not isinstance(stream, Stream):
        return rowwise(node)
    first = node.entry(1, stream.axis)
    begin, sizes = (node.bounds(index)[0].copy() for index in (1, 2))
    begin[stream.axis], sizes[stream.axis] = 0, -1
    return _slice_stream(node, stream, first, lambda rows: tf.slice(rows, begin, sizes))


@rule("StridedSlice")
def _strided_slices(node: Node) -> Part:
    stream = node.kinds[0]
    if not isinstance(stream, Stream):
        return rowwise(node)
    entry, masks = entry_of(node, stream.axis), masks_of(node)
    first, every = 0, 1
    if entry is not None:
        if masks["shrink_axis_mask"] >> entry & 1:
            return Part([node.derive_kind(0, stream)], None)
        every = node.entry(3, entry)
        if every < 1:
            raise node.refusal_error("reverses time (strided slice)")
        if not masks["begin_mask"] >> entry & 1:
            first = node.entry(1, entry)
        masks["begin_mask"] |= 1 << entry
        masks["end_mask"] |= 1 << entry
    begin, end, strides = (node.bounds(index)[0].copy() for index in (1, 2, 3))
    if entry is not None:
        strides[entry] = 1

    def cut(rows: tf.Tensor) -> tf.Tensor:
        return tf.strided_slice(rows, begin, end, strides, **masks)

    part = _slice_stream(node, stream, first, cut, every)
    part.is_alias &= every == 1 and bool(np.all(strides == 1))
    return part


def _slice_stream(
    node: Node, stream: Stream, first: int, run: Callable[[tf.Tensor], tf.Tensor], every: int = 1
) -> Part:
    if (first or every > 1) and stream.is_merged:
        raise node.unsupported_error("it slices a merged axis")
    ahead = stream.ahead
    offset = None if stream.offset is None else stream.offset - first
    if first > 0:
        ahead = (*ahead, f"{node.layer} drops the first {first} of its rows")
    kept = dataclasses.replace(stream, offset=offset, ahead=ahead)
    kind = node.derive_kind(0, kept.decimate(every) if every > 1 else kept)
    is_alias = isinstance(kind, Stream) and _others(node.op.inputs[0], stream.axis) == _others(
        node.op.outputs[0], kind.axis
    )
    return Part([kind], lambda inputs, call: [run(inputs[0][0])], is_alias=is_alias)


def _others(tensor: tf.Tensor, axis: int) -> list[int | None]:
    return [None if i == axis else size for i, size in enumerate(tensor.shape)]


def masks_of(node: Node) -> dict[str, int]:
    """Return the masks of a StridedSlice, by name."""
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    return {name: node.op.get_attr(name) for name in names}


def entry_of(node: Node, axis: int) -> int | None:
    """Return the index of an axis's entry in a StridedSlice's specification; None without one."""
    count = len(node.bounds(3)[0])
    new, ellipsis = (node.op.get_attr(f"{name}_mask") for name in ("new_axis", "ellipsis"))
    named = sum(not (new | ellipsis) >> i & 1 for i in range(count))
    dimension = 0
    for i in range(count):
        if ellipsis >> i & 1:
            skipped = node.op.inputs[0].shape.rank - named
            if dimension <= axis < dimension + skipped:
                return None
            dimension += skipped
        elif not new >> i & 1:
            if dimension == axis:
                return i
            dimension += 1
    return None


CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")


@rule(*CONVOLUTIONS)
def _convolution(node: Node) -> Part:
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
    stride = node.op.get_attr("strides")[axis]
    front, after = _padding(node, axis, max((taps - 1) * dilation + 1 - stride, 0))
    stream, delays = _windows(node, stream, taps, dilation, front, after)
    kind = node.derive_kind(0, stream.decimate(stride) if stride > 1 else stream)
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
    around = _bounds(node, whole, node.op, axis)
    if around != _bounds(node, longer, node.longer, axis):
        raise node.length_error()
    front, after = around
    stream, delays = _windows(node, stream, kernel[conv_axis - 1], dilation, front, after)
    kind = node.derive_kind(0, stream)
    return Part([kind], _flat(whole.inner.type, conv_axis - 1), {0: delays})


def _static_array(node: Node, tensor: tf.Tensor) -> np.ndarray:
    value = static_value(tensor)
    if value is None:
        raise node.unsupported_error("an argument that must be constant is computed")
    return value


def _bounds(node: Node, whole: Dilated, batch: tf.Operation, axis: int) -> tuple[int, int]:
    """Return the numbers of zero rows before and after, except those that fill the last block.

    These are padded first and cropped at the end.
    """
    paddings = _static_array(node, whole.space.inputs[2])[axis - 1]
    crops = _static_array(node, batch.inputs[2])[axis - 1]
    return int(paddings[0] - crops[0]), int(paddings[1] - crops[1])


def _windows(
    node: Node, stream: Stream, taps: int, dilation: int, front: int, after: int
) -> tuple[Stream, tuple[int, ...]]:
    if front or after:
        stream = pad_stream(node, stream, front, after)
    reach = (taps - 1) * dilation
    offset = (stream.offset or 0) - reach
    ahead = stream.ahead
    if offset < 0 and not (front or after):
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
    window = tf.concat(taps, -1)
    flat = tf.reshape(window, [-1, window.shape[-1]])
    product = tf.matmul(flat, tf.reshape(kernel, [-1, kernel.shape[-1]]))
    return tf.reshape(product, [*window.shape[:-1], kernel.shape[-1]])


def _convolve_groups(taps: Sequence[tf.Tensor], kernel: tf.Tensor, groups: int) -> tf.Tensor:
    window = tf.stack(taps, -2)
    window = tf.reshape(window, [*window.shape[:-1], groups, -1])
    parts = tf.reshape(kernel, [*kernel.shape[:2], groups, -1])
    product = tf.einsum("...kgi,kigo->...go", window, parts)
    return tf.reshape(product, [*taps[0].shape[:-1], kernel.shape[-1]])


def _tapwise(op: tf.Operation, axis: int) -> Run:
    convolve = tf.nn.conv2d if op.type == "Conv2D" else tf.nn.depthwise_conv2d
    strides = [1 if i == axis else stride for i, stride in enumerate(op.get_attr("strides"))]
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
            convolve(tap, part, strides, padding, dilations=dilations[1:3])
            for tap, part in zip(inputs[0], kernels, strict=True)
        ]
        return [tf.add_n(products)]

    return run


@rule("AvgPool", "MaxPool")
def _pooling(node: Node) -> Part:
    stream = node.only()
    if stream.axis == 0:
        return rowwise(node)
    if stream.axis == 3 or stream.is_merged or node.op.get_attr("data_format") != b"NHWC":
        raise node.unsupported_error("it pools over channels, or an axis that time was merged with")
    axis, padding = stream.axis, node.op.get_attr("padding").decode()
    sizes, strides = (list(node.op.get_attr(name)) for name in ("ksize", "strides"))
    taps, stride = sizes[axis], strides[axis]
    if padding != "VALID" and taps > stride:
        raise node.unsupported_error("it pads the sequence")
    stream, delays = _windows(node, stream, taps, 1, 0, 0)
    kind = node.derive_kind(0, stream.decimate(stride) if stride > 1 else stream)
    sizes[axis] = strides[axis] = 1
    pool = tf.nn.avg_pool2d if node.type == "AvgPool" else tf.nn.max_pool2d

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        rows = inputs[0]
        if max(sizes) > 1 or max(strides) > 1:
            rows = [pool(each, sizes, strides, padding) for each in rows]
        if node.type == "AvgPool":
            return [tf.add_n(rows) / tf.constant(taps, rows[0].dtype)]
        return [functools.reduce(tf.maximum, rows)]

    return Part([kind], run, {0: delays})


@rule("Conv2DBackpropInput")
def transposed_convolution(node: Node) -> Part:
    """Return how a step runs a transposed convolution along time, of whatever stride.

    Output row `s i + r` at stride `s` is the sum over taps `j` of input row `i - j` and the
    kernel's entry `s j + r`.
    """
    stream, kernel = node.kinds[2], node.op.inputs[1]
    if not isinstance(stream, Stream) or node.kinds[1] is not None:
        node.refuse_kinds()
        raise node.unsupported_error("the sequence is not the input that its rule expects")
    axis, strides = stream.axis, node.op.get_attr("strides")
    other = 3 - axis
    if stream.is_merged or axis in (0, 3) or node.op.get_attr("data_format") != b"NHWC":
        raise node.unsupported_error("it convolves over another axis than time")
    if kernel.shape[other - 1] != 1 or node.op.inputs[2].shape[other] != 1 or strides[other] != 1:
        raise node.unsupported_error("it convolves over another axis than time")
    stride, dilation = strides[axis], node.op.get_attr("dilations")[axis]
    if stream.period % stride:
        raise node.unsupported_error("it makes a rate of time above that of the inputs")
    if (stream.offset or 0) < 0:
        raise node.unsupported_error("it pads a sequence whose first time steps were dropped")
    reach = (kernel.shape[axis - 1] - 1) * dilation
    front = _rows_cut(node, axis, stride, reach)
    stream = dataclasses.replace(stream, offset=stream.offset or 0)
    whole = stream.interleave(stride) if stride > 1 else stream
    ahead = whole.ahead
    if front:
        ahead = (*ahead, f"{node.layer} drops the first {front} of its rows")
    elif reach >= stride:
        ahead = (*ahead, f"{node.layer} adds rows at the end")
    offset = (whole.offset or 0) - front
    kind = node.derive_kind(0, whole, offset=offset, ahead=ahead)
    taps = reach // stride + 1
    places = np.full([taps * stride], kernel.shape[axis - 1])  # an entry of zeros
    places[: reach + 1 : dilation] = np.arange(kernel.shape[axis - 1])

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        entries = tf.pad(tf.squeeze(inputs[1][0], other - 1), [[0, 1], [0, 0], [0, 0]])
        entries = tf.gather(entries, places)
        entries = tf.reshape(entries, [taps, stride, *entries.shape[1:]])
        products = tf.transpose(entries, [1, 0, 3, 2])  # [remainder, tap, input, output]
        number = (call.position - whole.phase) // whole.period + (whole.offset or 0)
        remainder = tf.math.floormod(number, stride)
        return [_product(inputs[2], products[remainder] if stride > 1 else products[0])]

    return Part([kind], run, {2: tuple(range(taps))})


def _rows_cut(node: Node, axis: int, stride: int, reach: int) -> int:
    """Return how many first rows of a whole transposed convolution the padding cuts off."""
    padding = node.op.get_attr("padding")
    if padding == b"EXPLICIT":
        return node.op.get_attr("explicit_paddings")[2 * axis]
    if padding == b"VALID":
        return 0
    fronts = []
    for op, sizes in zip((node.op, node.longer), node.bounds(0), strict=True):
        rows = op.inputs[2].shape[axis]
        fronts.append(max((rows - 1) * stride + reach + 1 - int(sizes[axis]), 0) // 2)
    if fronts[0] != fronts[1]:
        raise node.length_error()
    return fronts[0]


def _add_logs(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    return tf.reduce_logsumexp(tf.stack([first, tf.broadcast_to(second, first.shape)]), 0)


_TOTALS: dict[str, tuple[Callable, Callable, float]] = {
    # the reduction of several rows, the combination of two totals, and the total of no rows
    "Cumsum": (tf.reduce_sum, tf.add, 0.0),
    "Cumprod": (tf.reduce_prod, tf.multiply, 1.0),
    "CumulativeLogsumexp": (tf.reduce_logsumexp, _add_logs, -math.inf),
}


@rule(*_TOTALS)
def _running_total(node: Node) -> Part:
    stream = node.only()
    axis = int(node.static(1)) % node.op.inputs[0].shape.rank
    kind = node.derive_kind(0, stream)
    if axis != stream.axis:
        return Part([kind], replay_operation(node))
    if node.op.get_attr("reverse"):
        raise node.refusal_error(f"sums over later time steps ({node.type}, reversed)")
    if stream.is_merged:
        raise node.unsupported_error("time was merged with another axis")
    if stream.offset is None or stream.offset < 0:
        raise node.unsupported_error("the first time steps were dropped before it")
    offset, key = stream.offset, f"{node.op.name}:total"
    reduce, combine, empty = _TOTALS[node.type]
    replay = replay_operation(node)

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        rows, before = inputs[0][0], call.state[key]
        call.changed[key] = combine(before, reduce(rows, axis))
        return [combine(replay(inputs, call)[0], tf.expand_dims(before, axis))]

    def states(values: list[tf.Tensor], whole: Callable) -> dict[str, tf.Tensor]:
        rows = tf.gather(values[0], tf.range(offset), axis=axis)
        if offset:
            return {key: reduce(rows, axis)}
        shape = [size for i, size in enumerate(rows.shape) if i != axis]
        return {key: tf.fill(shape, tf.constant(empty, rows.dtype))}

    return Part([kind], run, start=Start((node.op.inputs[0],), states))
