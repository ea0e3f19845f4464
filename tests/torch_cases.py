"""Arguments of PyTorch's operations on single elements and on shapes, by the operation's name."""

import functools
import math

import torch
from drawn_arguments import ALL, FLOATS, NUMBERS, Draw, case


def unary(dtypes, low=-3.0, high=3.0):
    return lambda draw: [draw.tensor(dtypes=dtypes, low=low, high=high)]


WAVES = "sin cos tan sinh cosh tanh asinh atan sigmoid erf erfc exp exp2 expm1 sign"
case(*WAVES.split())(unary(NUMBERS))
case(*["log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma"])(
    unary(NUMBERS, 1, 4)
)
case("asin", "acos", "atanh", "erfinv", "logit")(unary(FLOATS, 0.1, 0.9))
case("acosh")(unary(FLOATS, 1.1, 4))
case("silu", "mish", "selu", "hardsigmoid", "hardswish", "log_sigmoid", "frac")(unary(FLOATS))
PLAIN = "floor ceil trunc neg abs square relu relu6 clone detach alias positive contiguous"
case(*PLAIN.split(), "lift_fresh", "lift_fresh_copy", "resolve_conj", "resolve_neg")(unary(NUMBERS))
case("logical_not", "isnan", "isinf", "isfinite")(unary(ALL))
case("bitwise_not")(unary((torch.int64, torch.bool, torch.uint8)))
case("dropout", "feature_dropout", "alpha_dropout", "native_dropout")(
    lambda draw: [draw.tensor(), 0.5, False]
)
case("nan_to_num")(lambda draw: [draw.tensor() * draw.pick(1.0, math.inf, math.nan)])
case("round")(lambda draw: [draw.tensor()])
case("round.decimals")(lambda draw: ([draw.tensor()], {"decimals": 1}))


def pair(draw, dtypes=NUMBERS, low=-3.0, high=3.0):
    shape = draw.shape(0, 3)
    shapes = [shape, draw.like(shape)]
    if draw.pick(True, False):
        shapes.reverse()
    return [draw.tensor(each, dtypes, low, high) for each in shapes]


case("mul.Tensor", examples=25)(functools.partial(pair, dtypes=ALL))
case("sub.Tensor", "maximum", "minimum", "max.other", "min.other", "fmax", "fmin", examples=10)(
    pair
)
case(*(f"{name}.Tensor" for name in ["lt", "le", "gt", "ge", "eq", "ne"]), examples=10)(
    functools.partial(pair, dtypes=ALL)
)
MORE = "less less_equal greater greater_equal not_equal subtract multiply true_divide"
case(*(f"{name}.Tensor" for name in MORE.split()))(pair)
case("div.Tensor", "divide.Tensor", examples=10)(functools.partial(pair, low=1.0, high=5.0))
case("pow.Tensor_Tensor", "float_power.Tensor_Tensor", "hypot", "xlogy.Tensor", "logaddexp")(
    functools.partial(pair, dtypes=FLOATS, low=0.5, high=2.0)
)
case("atan2", "arctan2")(functools.partial(pair, low=1.0, high=4.0))
case("logical_and", "logical_or", "logical_xor")(functools.partial(pair, dtypes=ALL))
INTEGERS = (torch.int64, torch.int32, torch.bool)
LOGIC = ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__")
case(*(f"{name}.Tensor" for name in LOGIC))(functools.partial(pair, dtypes=INTEGERS))
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
case(*(f"{name}.Tensor" for name in SHIFTS))(
    functools.partial(pair, dtypes=(torch.int64, torch.int32), low=0, high=4)
)


@case("remainder.Tensor", "fmod.Tensor", "floor_divide", examples=10)
def divided(draw):
    first, second = pair(draw, (torch.float32, torch.int64))
    # Not close to a multiple: one rounding decides which.
    first = first * 1.37 if first.is_floating_point() else first
    return [first, torch.where(second == 0, 2, second)]


@case("div.Tensor_mode", examples=10)
def divided_by_mode(draw):
    return divided(draw), {"rounding_mode": draw.pick("floor", "trunc")}


@case("add.Scalar", "sub.Scalar", "mul.Scalar", "rsub.Scalar", examples=8)
def with_number(draw):
    return [draw.tensor(dtypes=NUMBERS), draw.number()]


@case("add.Tensor", examples=25)
def scaled_sum(draw):
    first, second = pair(draw, ALL)
    return [first, second], {"alpha": 2} if torch.bool not in (first.dtype, second.dtype) else {}


@case("rsub.Tensor")
def turned_difference(draw):
    return pair(draw), {"alpha": 2}


@case("pow.Tensor_Scalar")
def power(draw):
    return [draw.tensor(dtypes=NUMBERS, low=1, high=4), draw.pick(2, 3, 0.5, 2.0)]


case("pow.Scalar")(lambda draw: [2.5, draw.tensor(dtypes=NUMBERS)])
_MASK = functools.partial(Draw.tensor, dtypes=(torch.bool,))
case("where.self")(lambda draw: [_MASK(draw, [3, 4]), *pair_of(draw, [3, 4])])
case("where.ScalarSelf")(lambda draw: [_MASK(draw, [3]), draw.number(), draw.tensor([3])])
case("where.ScalarOther")(lambda draw: [_MASK(draw, [3]), draw.tensor([3]), draw.number()])
case("where.Scalar")(lambda draw: [_MASK(draw, [3]), draw.number(), draw.number()])


def pair_of(draw, shape):
    return [draw.tensor(draw.like(shape), NUMBERS) for _ in range(2)]


@case("clamp", "clip", examples=10)
def clamped(draw):
    bounds = draw.pick([-1, 1], [-0.5, None], [None, 2], [0, 1.5])
    return [draw.tensor(dtypes=NUMBERS), *bounds]


@case("clamp.Tensor")
def clamped_by_tensors(draw):
    return [draw.tensor([2, 3], NUMBERS), draw.tensor([3], NUMBERS), None]


case("rrelu")(lambda draw: [draw.tensor(dtypes=FLOATS), *draw.pick([], [0.25, 0.5, False])])
case("clamp_min", "clamp_max", "leaky_relu", "hardshrink", "softshrink", "celu")(
    lambda draw: [draw.tensor(), 0.5]
)
case("hardtanh")(lambda draw: [draw.tensor(), -0.5, 1.5])
case("masked_fill.Scalar")(
    lambda draw: [draw.tensor([2, 3], NUMBERS), draw.tensor([3], (torch.bool,)), 2]
)
case("gelu")(lambda draw: ([draw.tensor()], {"approximate": draw.pick("none", "tanh")}))
case("elu")(lambda draw: [draw.tensor(), draw.pick(1.0, 0.7), 1.0, draw.pick(1.0, 0.5)])
case("softplus")(lambda draw: [draw.tensor(), draw.pick(1, 2.0)])
case("threshold")(lambda draw: [draw.tensor(), 0.3, -1.0])
case("prelu")(lambda draw: [draw.tensor([2, 3, 2], (FLOATS[0],)), draw.tensor([3], (FLOATS[0],))])
case("lerp.Scalar")(lambda draw: [*(draw.tensor([2], (FLOATS[0],)) for _ in range(2)), 0.3])
case("addcmul", "addcdiv")(
    lambda draw: ([draw.tensor([2, 3], (FLOATS[1],), 1, 2) for _ in range(3)], {"value": 2})
)


@case("glu")
def gated(draw):
    return [draw.tensor([2, 4, 2]), draw.pick(1, -2, 2, -1)]


@case("to.dtype")
def cast(draw):
    return [draw.tensor(dtypes=ALL), draw.pick(*ALL)]


case("_to_copy")(lambda draw: ([draw.tensor(dtypes=ALL)], {"dtype": draw.pick(*ALL)}))
case("type_as")(lambda draw: [draw.tensor(dtypes=ALL), draw.tensor(dtypes=ALL)])

# Creation.
SOME = (None, torch.int64, torch.float32, torch.bool)
for _name in ("zeros", "ones"):
    case(_name)(lambda draw: ([draw.shape()], {"dtype": draw.pick(*SOME)}))
    case(f"{_name}_like")(lambda draw: ([draw.tensor(dtypes=ALL)], {"dtype": draw.pick(*SOME)}))
    case(f"new_{_name}")(lambda draw: ([draw.tensor(dtypes=ALL), draw.shape()], {}))
case("full")(lambda draw: ([draw.shape(0), draw.number()], {"dtype": draw.pick(*SOME)}))
case("full_like")(lambda draw: [draw.tensor(dtypes=ALL), 2])
case("new_full")(lambda draw: [draw.tensor(dtypes=ALL), draw.shape(), 2])
case("fill.Scalar")(lambda draw: [draw.tensor(dtypes=ALL), 2])
case("copy")(lambda draw: [draw.tensor([2, 3], ALL), draw.tensor([3], ALL)])
case("scalar_tensor")(lambda draw: ([draw.number()], {"dtype": draw.pick(*SOME)}))
case("arange")(lambda draw: ([draw.pick(5, 2.5)], {"dtype": draw.pick(*SOME[:3])}))
case("arange.start_step")(lambda draw: draw.pick([1, 9, 2], [5, -3, -2], [0.0, 1.0, 0.3]))
case("linspace")(lambda draw: [-1.0, draw.number(), draw.whole(1, 6)])
case("eye")(lambda draw: [draw.whole(1, 4)])
case("eye.m")(lambda draw: [draw.whole(1, 4), draw.whole(1, 4)])
case("tril", "triu")(lambda draw: [draw.tensor([2, 3, 4], ALL), draw.whole(-3, 3)])

# Shapes.
case("view", "reshape", "_unsafe_view", "view_copy")(
    lambda draw: [draw.tensor([2, 6], ALL), draw.pick([3, 4], [-1], [4, -1, 1])]
)
case("_reshape_alias")(lambda draw: [draw.tensor([2, 6]), [3, 4], [4, 1]])
case("view_as", "reshape_as")(lambda draw: [draw.tensor([2, 6]), draw.tensor([4, 3])])
case("unflatten.int")(lambda draw: [draw.tensor([2, 6, 2]), draw.pick(1, -2), [3, -1]])
case("flatten.using_ints")(
    lambda draw: [draw.tensor([2, 3, 2, 2]), *draw.pick([1, -1], [0, 1], [-3, 2])]
)
case("permute")(lambda draw: [draw.tensor([2, 3, 4]), draw.pick([0, 2, 1], [-1, 0, 1])])
case("transpose.int", "swapaxes", "swapdims", "movedim.int", "moveaxis.int", examples=10)(
    lambda draw: (lambda x: [x, draw.axis(x), draw.axis(x)])(draw.tensor())
)
case("squeeze.dim", "unbind.int", "sym_size.int", "logcumsumexp", "_safe_softmax")(
    lambda draw: (lambda x: [x, draw.axis(x)])(draw.tensor())
)
case("squeeze.dims")(lambda draw: (lambda x: [x, draw.axes(x)])(draw.tensor()))
case("t")(lambda draw: [draw.tensor(draw.shape(1, 2))])
case("mT")(lambda draw: [draw.tensor(draw.pick([2, 3], [4, 2, 3]))])
case("numpy_T")(lambda draw: [draw.tensor(draw.pick([2], [2, 3]))])
case("movedim.intlist")(lambda draw: [draw.tensor([2, 3, 4]), [0, -1], draw.pick([2, 0], [1, 0])])
case("unsqueeze")(lambda draw: (lambda x: [x, draw.axis(x, 1)])(draw.tensor(dtypes=ALL)))
case("squeeze")(lambda draw: [draw.tensor()])
case("broadcast_to")(lambda draw: [draw.tensor([1, 3], ALL), draw.pick([2, 3], [4, 2, 3])])
case("expand")(lambda draw: [draw.tensor([1, 3], ALL), draw.pick([2, -1], [4, -1, 3])])
case("expand_as")(lambda draw: [draw.tensor([1, 3]), draw.tensor([2, 4, 3])])
case("broadcast_tensors")(lambda draw: [[draw.tensor([3]), draw.tensor([1])]])
case("meshgrid")(lambda draw: [[draw.tensor([3], FLOATS[:1]), draw.tensor([2], FLOATS[:1])]])
case("repeat")(lambda draw: [draw.tensor([2, 3], ALL), draw.pick([2, 1], [3, 1, 2])])
case("tile")(lambda draw: [draw.tensor([2, 3], ALL), draw.pick([2], [1, 2], [3, 1, 2])])
case("repeat_interleave.self_int")(
    lambda draw: (lambda x: [x, draw.whole(1, 3), draw.pick(None, draw.axis(x))])(draw.tensor())
)
case("repeat_interleave.self_Tensor")(
    lambda draw: [draw.tensor([3, 2]), torch.tensor([1, 0, 2]), -2]
)


@case("cat", "concat", "concatenate", "stack", examples=10)
def joined(draw):
    shape = draw.shape()
    xs = [draw.tensor(shape, ALL) for _ in range(draw.whole(1, 3))]
    return [xs, draw.axis(xs[0])]


case("split.Tensor", "unsafe_split.Tensor", "chunk", "unsafe_chunk", examples=8)(
    lambda draw: (lambda x: [x, draw.whole(1, 4), draw.axis(x)])(draw.tensor([4, 3, 5]))
)
case("split_with_sizes")(lambda draw: [draw.tensor([2, 5]), [1, 4], draw.pick(1, -1)])
case("tensor_split.sections")(lambda draw: [draw.tensor([2, 5]), draw.whole(1, 4), -1])
case("tensor_split.indices")(lambda draw: [draw.tensor([2, 5]), [1, 3], -1])


@case("slice.Tensor", examples=20)
def sliced(draw):
    x = draw.tensor([4, 5], ALL)
    ends = draw.pick(None, -3, 0, 1, 9), draw.pick(None, -1, 3, 9, 2**63 - 1)
    return [x, draw.axis(x), *ends, draw.whole(1, 3)]


case("select.int")(
    lambda draw: (lambda x: [x, draw.axis(x), draw.pick(-1, 0, 1)])(draw.tensor([2, 3]))
)
case("narrow")(lambda draw: [draw.tensor([2, 5]), draw.pick(1, -1), draw.pick(0, 2, -3), 2])
case("slice_scatter")(lambda draw: [draw.tensor([2, 5]), draw.tensor([2, 2], NUMBERS), -1, 1, 5, 2])
case("select_scatter")(lambda draw: [draw.tensor([2, 5]), draw.tensor([2]), -1, draw.pick(1, -2)])
case("flip")(lambda draw: (lambda x: [x, draw.axes(x)])(draw.tensor(dtypes=ALL)))
case("roll")(
    lambda draw: [draw.tensor([3, 4]), *draw.pick([[1], [-1]], [[2, -3], [0, 1]], [[5], []])]
)
case("unfold")(
    lambda draw: [draw.tensor([2, 6, 2]), draw.pick(1, -2), draw.whole(1, 4), draw.whole(1, 3)]
)
case("diagonal")(
    lambda draw: [draw.tensor([3, 2, 4]), draw.whole(-1, 2), *draw.pick([0, 1], [-1, 0])]
)
case("pixel_shuffle")(lambda draw: [draw.tensor([2, 8, 2, 3]), 2])
case("pixel_unshuffle")(lambda draw: [draw.tensor([2, 2, 4, 6]), 2])


@case("pad", examples=12)
def padded(draw):
    mode = draw.pick("constant", "reflect", "replicate", "circular")
    x = draw.tensor([2, 3, 4, 5], FLOATS)
    pads = [draw.whole(0, 2) for _ in range(4)]
    if mode == "constant":
        return [x, [*pads, -1, draw.pick(0, -1)], mode, draw.pick(None, 1.5)]
    return [x, pads, mode]


def upsampled(draw, shape, by_factors, to_size):
    return [
        draw.tensor([1, 2, *shape], FLOATS[:1]),
        *draw.pick([None, *by_factors], [*to_size, None]),
    ]


case("constant_pad_nd")(lambda draw: [draw.tensor([2, 3], ALL), [1, -1, 0, 2], draw.pick(0, 2)])
for _axes in (1, 2, 3):
    case(f"reflection_pad{_axes}d", f"replication_pad{_axes}d", examples=3)(
        lambda draw, axes=_axes: [
            draw.tensor([1, 2, 3, 3, 3][: axes + 2]),
            [draw.whole(0, 2) for _ in range(2 * axes)],
        ]
    )
    case(f"max_pool{_axes}d", f"avg_pool{_axes}d", examples=3)(
        lambda draw, axes=_axes: [
            draw.tensor([2, 2, *[6] * axes]),
            [draw.whole(2, 3)],
            [draw.whole(1, 3)],
            [1],
        ]
    )
    case(f"upsample_nearest{_axes}d.vec", examples=3)(
        lambda draw, axes=_axes: upsampled(draw, [3] * axes, [[2.0] * axes], [[5] * axes])
    )
case("upsample_linear1d.vec")(lambda draw: upsampled(draw, [5], [True, [2.0]], [[7], False]))
case("upsample_bilinear2d.vec")(
    lambda draw: upsampled(draw, [3, 5], [True, [2.0, 3.0]], [[7, 4], False])
)
case("sym_numel", "numel")(unary(FLOATS))
