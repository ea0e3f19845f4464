"""Arguments of PyTorch's operations along axes, by indices and of products, by name."""

import math

import torch
from drawn_arguments import ALL, FLOATS, NUMBERS, case

F32, F64 = FLOATS[:1], FLOATS[1:]
DTYPES = (None, torch.float64)


@case("mean.dim", "amax", "amin", "logsumexp", examples=8)
def reduced(draw):
    x = draw.tensor(dtypes=FLOATS)
    return [x, draw.axes(x), draw.pick(True, False)]


@case("sum", "prod", "any", "all", "max", "min", "count_nonzero")
def whole(draw):
    return [draw.tensor(dtypes=(*FLOATS, torch.int64))]


@case("prod.dim_int", "any.dim", "all.dim", "max.dim", "min.dim")
def along(draw):
    x = draw.tensor(dtypes=(*FLOATS, torch.int64))
    return [x, draw.axis(x)]


case("mean")(lambda draw: [draw.tensor()])
case("sum.dim_IntList")(lambda draw: (lambda x: [x, draw.axes(x), True])(draw.tensor(dtypes=ALL)))
case("count_nonzero.dim_IntList")(lambda draw: (lambda x: [x, [draw.axis(x)]])(draw.tensor()))
case("argmax", "argmin", examples=8)(
    lambda draw: (lambda x: [x, draw.pick(None, draw.axis(x)), draw.pick(True, False)])(
        draw.tensor()
    )
)


@case("var.correction", "std.correction", "var_mean.correction", "std_mean.correction", examples=8)
def moments(draw):
    x = draw.tensor([3, 4, 2])
    return [x, draw.axes(x)], {"correction": draw.pick(0, 1), "keepdim": draw.pick(True, False)}


case("var.dim", "std.dim")(lambda draw: [draw.tensor([3, 4]), [-1], draw.pick(True, False)])
case("var", "std")(lambda draw: [draw.tensor([3, 4]), draw.pick(True, False)])
case("linalg_vector_norm", examples=10)(
    lambda draw: [draw.tensor([3, 4]), draw.pick(0, 1, 2, 3, math.inf, -math.inf), [-1], True]
)
case("norm.ScalarOpt_dim")(lambda draw: [draw.tensor([3, 4]), draw.pick(None, 1, 2), [-1], True])
case("cumsum", "cumprod")(lambda draw: (lambda x: [x, draw.axis(x)])(draw.tensor(dtypes=ALL)))
case("diff")(lambda draw: [draw.tensor([2, 5], ALL[:4]), draw.pick(1, 2), -1])
case("softmax.int", "log_softmax.int")(
    lambda draw: (lambda x: [x, draw.axis(x), draw.pick(*DTYPES)])(draw.tensor())
)
case("_softmax", "_log_softmax")(lambda draw: (lambda x: [x, draw.axis(x), False])(draw.tensor()))


def scale_and_shift(draw, shape, dtype):
    return [draw.pick(None, draw.tensor(shape, dtype)), draw.pick(None, draw.tensor(shape, dtype))]


@case("layer_norm")
def layer_norm(draw):
    shape = draw.pick([4], [3, 4])
    return [draw.tensor([2, 3, 4], F64), shape, *scale_and_shift(draw, shape, F64), 1e-3]


case("native_layer_norm")(lambda draw: [draw.tensor([2, 4], F64), [4], None, None, 1e-3])
case("rms_norm")(lambda draw: [draw.tensor([2, 4]), [4], None, draw.pick(None, 1e-3)])
case("group_norm")(
    lambda draw: [draw.tensor([2, 6, 3], F64), 3, *scale_and_shift(draw, [6], F64), 1e-3]
)


@case("batch_norm")
def batch_norm(draw):
    stored = [draw.tensor([3], F64), draw.tensor([3], F64, 1, 2)]
    x = draw.tensor(draw.pick([2, 3], [2, 3, 4], [2, 3, 4, 2]), F64)
    return [x, *scale_and_shift(draw, [3], F64), *stored, False, 0.1, 1e-3, False]


case("_native_batch_norm_legit_no_training")(lambda draw: [*batch_norm(draw)[:5], 0.1, 1e-3])
INSTANCES = [None, None, True, 0.1, 1e-3, False]
case("instance_norm")(
    lambda draw: [draw.tensor([2, 3, 4], F64), *scale_and_shift(draw, [3], F64), *INSTANCES]
)
case("_weight_norm", "_weight_norm_interface")(
    lambda draw: [draw.tensor([3, 2, 2], F32), draw.tensor([3, 1, 1], F32), 0]
)
case("adaptive_avg_pool1d")(lambda draw: [draw.tensor([2, 3, 4]), [1]])
case("adaptive_avg_pool2d")(lambda draw: [draw.tensor([2, 3, 4, 5]), [1, 1]])
case("cosine_similarity")(lambda draw: [draw.tensor([2, 3], F64), draw.tensor([2, 3], F64), -1])


# Indices.
@case("index.Tensor", "_unsafe_index.Tensor", examples=20)
def indexed(draw):
    x = draw.tensor([3, 4, 5], ALL)
    found = [draw.index(n, draw.pick([2], [3, 1], [1, 2], []), -n) for n in x.shape]
    chosen = draw.pick((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2))
    return [x, [found[n] if n in chosen else None for n in range(max(chosen) + 1)]]


@case("index_put", "_unsafe_index_put", examples=15)
def written(draw):
    x, indices = indexed(draw)
    x = x.to(torch.float64)
    known = [index for index in indices if index is not None]
    if len(known) == 1:  # different places, of which the order of writing makes no difference
        axis = next(n for n, index in enumerate(indices) if index is not None)
        indices[axis] = torch.tensor(draw.order(x.shape[axis])[:2])
    else:
        indices = [None if index is None else index.reshape(-1)[:1] for index in indices]
    return [x, indices, draw.tensor([1], F64), draw.pick(True, False)]


case("index_select")(lambda draw: [draw.tensor([3, 4], ALL), draw.pick(1, -1), draw.index(4, [3])])
case("embedding")(lambda draw: [draw.tensor([5, 3]), draw.index(5, draw.shape())])
case("take")(lambda draw: [draw.tensor([3, 4], ALL), draw.index(12, [2, 2], -12)])
case("gather", examples=10)(
    lambda draw: [draw.tensor([3, 4], ALL), 1, draw.index(4, draw.pick([2, 3], [3, 6]))]
)
case("take_along_dim")(lambda draw: [draw.tensor([3, 4]), draw.index(4, [3, 2]), -1])


def scattered(draw):
    order = torch.tensor([draw.order(5)[:3] for _ in range(2)])
    return [draw.tensor([3, 5], F64), draw.pick(1, -1), order]


case("scatter.src", "scatter_add")(lambda draw: [*scattered(draw), draw.tensor([2, 4], F64)])
case("scatter.value")(lambda draw: [*scattered(draw), 1.5])
case("scatter_reduce.two")(
    lambda draw: [*scattered(draw), draw.tensor([2, 3], F64), draw.pick("sum", "amax", "amin")]
)
_PLACES = torch.tensor([2, 0])
case("index_add")(
    lambda draw: ([draw.tensor([2, 3], F64), -1, _PLACES, draw.tensor([2, 2], F64)], {"alpha": 2})
)
case("index_copy")(lambda draw: [draw.tensor([2, 3], F64), -1, _PLACES, draw.tensor([2, 2], F64)])
case("index_fill.int_Scalar")(lambda draw: [draw.tensor([2, 3], ALL), -1, _PLACES, 2])
case("one_hot")(lambda draw: [draw.index(4, [2, 3]), 4])
case("topk")(lambda draw: [draw.tensor([3, 5]), 2, draw.pick(0, -1), draw.pick(True, False)])
case("sort", "argsort")(
    lambda draw: [draw.tensor([3, 5]), draw.pick(0, -1), draw.pick(True, False)]
)
case("sort.stable")(lambda draw: ([draw.tensor([9], ALL)], {"stable": True, "dim": -1}))
BORDERS = torch.tensor([-1.0, 0.0, 2.0])
RIGHT = {"right": True}, {"right": False}
case("searchsorted.Tensor")(
    lambda draw: ([BORDERS.to(torch.float64), draw.tensor([2, 3], F64)], draw.pick(*RIGHT))
)
case("bucketize.Tensor")(lambda draw: ([draw.tensor([2, 3], NUMBERS), BORDERS], draw.pick(*RIGHT)))
case("histc")(lambda draw: [draw.tensor([4, 3], F32), draw.pick(3, 5), -2, 2])


# Products.
@case("linear", examples=8)
def linear(draw):
    lead = draw.shape(0, 3)
    bias = draw.pick([], [draw.tensor([2], F64)])
    return [draw.tensor([*lead, 3], F64), draw.tensor([2, 3], F64), *bias]


@case("matmul", examples=12)
def multiplied(draw):
    same = ([3], [3]), ([2, 3], [3]), ([3], [3, 4]), ([2, 3], [3, 4]), ([5, 2, 3], [3, 4])
    wide = ([5, 2, 3], [5, 3, 4]), ([2, 3], [5, 3, 4]), ([2, 1, 2, 3], [5, 3, 2]), ([3], [5, 3, 2])
    first, second = draw.pick(*same, *wide, ([5, 2, 3], [3]))
    return [draw.tensor(first, F64), draw.tensor(second, F64)]


def tensors(*shapes):
    return lambda draw: [draw.tensor(shape, F64) for shape in shapes]


matrices = tensors([2, 3], [3, 4])
case("mm")(matrices)
case("bmm")(tensors([5, 2, 3], [5, 3, 4]))
case("mv")(tensors([2, 3], [3]))
case("dot")(tensors([3], [3]))
case("outer", "ger")(tensors([2], [3]))
case("addmv")(tensors([2], [2, 3], [3]))
case("baddbmm")(tensors([1, 4], [5, 2, 3], [5, 3, 4]))
case("vdot")(lambda draw: [torch.complex(*parts(draw)).flatten() for _ in range(2)])
case("matrix_exp", "linalg_matrix_exp")(
    lambda draw: [draw.tensor(draw.pick([3, 3], [2, 3, 3]), F64)]
)
case("addmm")(
    lambda draw: ([draw.tensor([4], F64), *matrices(draw)], {"beta": draw.pick(1, 2), "alpha": 3})
)
case("einsum")(lambda draw: [draw.pick("ij,jk->ik", "ij, jk -> ki", "ij,jk"), matrices(draw)])
case("tensordot")(lambda draw: [*matrices(draw), [-1], [0]])
case("_grouped_mm")(
    lambda draw: [
        draw.tensor([6, 16], F32),
        draw.tensor([3, 16, 8], F32),
        torch.tensor([2, 2, 6]).int(),
    ]
)


def convolved(draw, axes, is_transposed=False):
    groups = draw.pick(1, 2, 4)
    more = draw.whole(1, 2)
    sizes = [draw.whole(1, 3) for _ in range(axes)]
    shape = [4, 2 * more] if is_transposed else [groups * more, 4 // groups]
    channels = 2 * more * groups if is_transposed else groups * more
    x = draw.tensor([2, 4, *[draw.whole(6, 8) for _ in range(axes)]], F64)
    bias = draw.pick(None, draw.tensor([channels], F64))
    return [x, draw.tensor([*shape, *sizes], F64), bias], groups


def case_of_convolution(axes):
    @case(f"conv{axes}d", examples=12)
    def convolution(draw):
        arguments, groups = convolved(draw, axes)
        # TensorFlow has no convolution with both.
        stride, dilation = draw.pick(([1], [1]), ([2], [1]), ([1], [2]))
        return [*arguments, stride, [draw.whole(0, 2)], dilation if axes < 3 else [1], groups]

    @case(f"conv{axes}d.padding")
    def convolution_same(draw):
        arguments, groups = convolved(draw, axes)
        dilation = [draw.whole(1, 2 if axes < 3 else 1)]
        return [*arguments, [1], draw.pick("same", "valid"), dilation, groups]

    @case(f"conv_transpose{axes}d" + (".input" if axes > 1 else ""), examples=8)
    def transposed(draw):
        arguments, groups = convolved(draw, axes, True)
        stride = draw.whole(1, 3)
        more = draw.whole(0, stride - 1)
        return [*arguments, [stride], [draw.whole(0, 1)], [more], groups, [1]]


for _axes in (1, 2, 3):
    case_of_convolution(_axes)


@case("convolution", examples=8)
def general_convolution(draw):
    is_transposed = draw.pick(True, False)
    arguments, groups = convolved(draw, 2, is_transposed)
    return [*arguments, [1, 1], [1, 0], [1, 1], is_transposed, [0, 0], groups]


# Fourier transforms and complex numbers.
NORMS = (None, "backward", "ortho", "forward")
case("fft_fft", "fft_ifft", "fft_rfft")(
    lambda draw: [draw.tensor([3, 6]), draw.pick(None, 4, 8), draw.pick(0, -1), draw.pick(*NORMS)]
)
case("fft_irfft")(
    lambda draw: [torch.complex(*parts(draw)), draw.pick(None, 4, 7), -1, draw.pick(*NORMS)]
)


def parts(draw):
    return [draw.tensor([2, 4], F32) for _ in range(2)]


case("real", "imag", "angle", "view_as_real", "abs", "conj", "_conj", "conj_physical")(
    lambda draw: [torch.complex(*parts(draw))]
)
case("mH", "matrix_H", "adjoint")(lambda draw: [torch.complex(*parts(draw))])
case("complex")(parts)
case("polar")(lambda draw: [draw.tensor([2], F32, 0.1), draw.tensor([2], F32)])
case("view_as_complex")(lambda draw: [draw.tensor([3, 2], F32)])


# Attention and cells of recurrent layers.
@case("scaled_dot_product_attention", examples=15)
def attention(draw):
    heads, groups = draw.pick((4, 4), (4, 2), (4, 1))
    rows, columns = draw.whole(1, 4), draw.whole(1, 4)
    shapes = [2, heads, rows, 3], *[[2, groups, columns, 3]] * 2
    x = [draw.tensor(shape, F32) for shape in shapes]
    mask = draw.pick(None, "bool", "float", "causal")
    allowed = draw.tensor([2, 1, rows, columns], (torch.bool,)) if mask == "bool" else None
    if mask == "bool":
        allowed[..., 0] = True
    if mask == "float":
        allowed = draw.tensor([rows, columns], F32)
    options = {"is_causal": mask == "causal", "enable_gqa": groups < heads}
    return [*x, allowed, 0.0], options | {"scale": draw.pick(None, 0.3)}


def cell(draw, gates):
    shapes = [[gates * 3, 4], [gates * 3, 3], [gates * 3], [gates * 3]]
    weights = [draw.tensor(shape, F32) for shape in shapes]
    return weights if draw.pick(True, False) else [*weights[:2], None, None]


def row_and_state(draw):
    return [draw.tensor([2, 4], F32), draw.tensor([2, 3], F32)]


case("gru_cell")(lambda draw: [*row_and_state(draw), *cell(draw, 3)])
case("rnn_tanh_cell", "rnn_relu_cell")(lambda draw: [*row_and_state(draw), *cell(draw, 1)])
case("lstm_cell")(
    lambda draw: (lambda x, h: [x, [h, 0.5 * h], *cell(draw, 4)])(*row_and_state(draw))
)
