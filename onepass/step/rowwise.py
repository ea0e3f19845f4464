"""Rules for operations that treat all time steps equally, such as products over channels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.step.replay import run_op
from onepass.step.rules import rule, types_of
from onepass.step.sizes import static_value
from onepass.step.streams import Call, Kind, Node, Part, Run, Stream

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
STILL = frozenset(("Fill", "BroadcastTo", "ZerosLike", "OnesLike", "Tile", "ExpandDims"))
LIKE = ("ZerosLike", "OnesLike")


def align_streams(node: Node, streams: Sequence[Stream]) -> tuple[int | None, int, tuple[str, ...]]:
    """Return offset, end and lookahead of an output whose row i is computed from input rows i."""
    if len({(stream.outer, stream.inner) for stream in streams}) > 1:
        raise node.unsupported_error("its inputs have their axes merged in different ways")
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


def fill_like_input(node: Node) -> tf.Tensor:
    """Return the zeros or ones that an operation creates in the shape of its input."""
    output = node.op.outputs[0]
    make = tf.zeros if node.type == "ZerosLike" else tf.ones
    return make(output.shape, output.dtype)


@rule("Reshape")
def reshape(node: Node) -> Part:
    """Return how a step runs a reshape that may merge time with adjacent axes, or split them."""
    stream = node.first()
    axes = node.moving(0)
    if len(axes) != 1:
        return Part([node.derive_kind(0, stream)], replay_operation(node))
    before = [_product(x.shape[:a]) for x, a in _ends(node, stream.axis, axes[0])]
    after = [_product(x.shape[a + 1 :]) for x, a in _ends(node, stream.axis, axes[0])]
    outer, left = divmod(before[0] * stream.outer, before[1])
    inner, right = divmod(after[0] * stream.inner, after[1])
    if left or right:
        raise node.refusal_error("mixes time with another axis (Reshape)")
    merged_by = "" if outer * inner == 1 else stream.merged_by or node.layer
    kind = node.derive_kind(0, stream, outer=outer, inner=inner, merged_by=merged_by)
    shape, axis = node.op.outputs[0].shape.as_list(), axes[0]

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        sizes = [*shape[:axis], outer * call.rows * inner, *shape[axis + 1 :]]
        return [tf.reshape(inputs[0][0], sizes)]

    return Part([kind], run)


@rule("EnsureShape")
def same_shape(node: Node) -> Part:
    """Return how a step runs a check of a shape, which names the whole length."""
    return Part([node.only()], lambda inputs, call: [inputs[0][0]], is_alias=True)


@rule("ReverseV2", "Roll")
def turn_axes(node: Node) -> Part:
    """Return how a step reverses or rolls axes other than time."""
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
def broadcast(node: Node) -> Part:
    """Return how a step runs a broadcast of a stream to a shape."""
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
    stream = Stream(axis=0, offset=None, end=1 << 40)
    kinds: list[Kind] = [node.derive_kind(0, stream)]
    axis = node.moving(0)[0]

    def run(inputs: list[list[Any]], call: Call) -> list[tf.Tensor]:
        given = [delays[0] for delays in inputs]
        for index, tensor in enumerate(node.op.inputs):
            if given[index] is None:  # a size that grows with the length
                given[index] = tf.constant(static_value(tensor), tensor.dtype)
        whole = run_op(node.op, given)[0]
        row = tf.gather(whole, [0], axis=axis)
        return [tf.repeat(row, call.rows, axis)]

    return Part(kinds, run)


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _ends(
    node: Node, axis_in: int, axis_out: int
) -> tuple[tuple[tf.Tensor, int], tuple[tf.Tensor, int]]:
    return (node.op.inputs[0], axis_in), (node.op.outputs[0], axis_out)
