"""Rules for matrix products, convolutions and Fourier transforms."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onepass.networks.from_torch.table import (
    along,
    as_dtype,
    as_shape,
    aten,
    axis_of,
    moved_back,
    pairs,
    product,
    sizes,
    with_last,
)


def _by_matrix(x: tf.Tensor, matrix: tf.Tensor, turned: bool) -> tf.Tensor:
    if x.shape.rank == 2:
        return tf.matmul(x, matrix, transpose_b=turned)
    *lead, inner = sizes(x)
    flat = tf.matmul(tf.reshape(x, as_shape([product(lead), inner])), matrix, transpose_b=turned)
    return tf.reshape(flat, as_shape([*lead, matrix.shape[0 if turned else 1]]))


@aten("linear")
def _linear(x: tf.Tensor, weight: tf.Tensor, bias: Any = None) -> tf.Tensor:
    y = _by_matrix(x, weight, True)
    return y if bias is None else y + bias


DIRECT: dict[str, Callable[..., tf.Tensor]] = {
    "vdot": lambda a, b: tf.reduce_sum(tf.math.conj(a) * b),
    "outer ger": lambda a, b: a[:, None] * b,
    "matrix_exp linalg_matrix_exp": tf.linalg.expm,
    "einsum": lambda equation, xs, path=None: tf.einsum(equation.replace(" ", ""), *xs),
    "real": tf.math.real,
    "imag": tf.math.imag,
    "angle": tf.math.angle,
    "conj _conj conj_physical": tf.math.conj,
    "complex": tf.complex,
    "polar": lambda r, phase: tf.complex(r * tf.cos(phase), r * tf.sin(phase)),
    "view_as_real": lambda x: tf.stack([tf.math.real(x), tf.math.imag(x)], -1),
    "view_as_complex": lambda x: tf.complex(x[..., 0], x[..., 1]),
}
for _names, _function in DIRECT.items():
    aten(*_names.split())(_function)


@aten("matmul", "mm", "bmm", "mv", "dot")
def _matmul(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    is_row, is_column = a.shape.rank == 1, b.shape.rank == 1
    a, b = a[None] if is_row else a, b[:, None] if is_column else b
    is_flat = b.shape.rank == 2 and a.shape.rank != 2
    y = _by_matrix(a, b, False) if is_flat else tf.matmul(a, b)
    y = tf.squeeze(y, -1) if is_column else y
    return tf.squeeze(y, -1 if is_column else -2) if is_row else y


@aten("addmm", "addmv", "baddbmm")
def _addmm(x: tf.Tensor, a: tf.Tensor, b: tf.Tensor, beta: Any = 1, alpha: Any = 1) -> tf.Tensor:
    y = _matmul(a, b)
    y = y if alpha == 1 else y * as_dtype(alpha, y.dtype)
    return y + (x if beta == 1 else x * as_dtype(beta, x.dtype))


@aten("tensordot")
def _tensordot(a: tf.Tensor, b: tf.Tensor, first: Sequence[int], second: Sequence[int]) -> Any:
    return tf.tensordot(a, b, [[axis_of(a, n) for n in first], [axis_of(b, n) for n in second]])


@aten("_grouped_mm", "transformers.grouped_mm_fallback")
def _grouped_mm(
    a: tf.Tensor, b: tf.Tensor, offs: tf.Tensor, bias: Any = None, *ignored: Any
) -> tf.Tensor:
    """Return rows [rows, in] times the matrix [groups, in, out] of the group that they lie in."""
    group = tf.searchsorted(tf.cast(offs, tf.int32), tf.range(sizes(a)[0]), "right")
    parts = [
        tf.where((group == n)[:, None], tf.matmul(a, b[n]), 0.0) for n in range(int(b.shape[0]))
    ]
    return tf.add_n(parts)


def _conv(
    x: tf.Tensor,
    weight: tf.Tensor,
    bias: Any,
    stride: Sequence[int],
    pads: Sequence[Sequence[int]],
    dilation: Sequence[int],
    groups: int,
) -> tf.Tensor:
    """Return a convolution of [batch, channels, ...] with [out, in / groups, ...]."""
    axes = len(stride)
    x = tf.transpose(x, [0, *range(2, axes + 2), 1])
    if any(n for pad in pads for n in pad):
        x = tf.pad(x, [[0, 0], *pads, [0, 0]])
    kernel = tf.transpose(weight, [*range(2, axes + 2), 1, 0])
    if groups > 1 and groups == x.shape[-1] and axes < 3 and not _both(stride, dilation):
        y = _depthwise(x, kernel, stride, dilation, groups)
    else:
        xs, kernels = tf.split(x, groups, -1), tf.split(kernel, groups, -1)
        ys = [
            tf.nn.convolution(part, own, list(stride), "VALID", dilations=list(dilation))
            for part, own in zip(xs, kernels, strict=True)
        ]
        y = ys[0] if groups == 1 else tf.concat(ys, -1)
    y = y if bias is None else y + bias
    return tf.transpose(y, [0, axes + 1, *range(1, axes + 1)])


def _both(stride: Sequence[int], dilation: Sequence[int]) -> bool:
    return len({*stride}) > 1 or (max(stride) > 1 and max(dilation) > 1)


def _depthwise(
    x: tf.Tensor, kernel: tf.Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> tf.Tensor:
    lead = [1] * (2 - len(stride))
    batch, *spatial, channels = sizes(x)
    wide = tf.reshape(x, as_shape([batch, *lead, *spatial, channels])) if lead else x
    shape = [*lead, *kernel.shape[:-2], groups, int(kernel.shape[-1]) // groups]
    steps, widths = [stride[-1]] * 2, [*lead, *dilation]
    y = tf.nn.depthwise_conv2d(
        wide, tf.reshape(kernel, shape), [1, *steps, 1], "VALID", dilations=widths
    )
    return tf.squeeze(y, 1) if lead else y


def _same_or_valid(padding: Any, weight: tf.Tensor, dilation: Sequence[int]) -> Any:
    axes = len(dilation)
    if not isinstance(padding, str):
        return [[n, n] for n in pairs(padding, axes)]
    spans = [n * (size - 1) for n, size in zip(dilation, weight.shape[2:], strict=True)]
    return [[span // 2, span - span // 2] if padding == "same" else [0, 0] for span in spans]


def _transpose_convolution(
    x: tf.Tensor,
    weight: tf.Tensor,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    more: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> tf.Tensor:
    """Return a transposed convolution: that of the input with zeros between its elements."""
    axes, pads = len(stride), []
    for place in range(axes):
        axis, step = place + 2, stride[place]
        if step > 1:
            x = _spread(x, axis, step)
        span = dilation[place] * (int(weight.shape[axis]) - 1)
        pads.append([span - padding[place], span - padding[place] + more[place]])
    for axis, (low, high) in enumerate(pads, 2):  # more padding than the kernel is wide
        if low < 0 or high < 0:
            x = x[along(axis, max(-low, 0), min(high, 0) or None)]
    pads = [[max(low, 0), max(high, 0)] for low, high in pads]
    kernel = tf.reverse(weight, list(range(2, axes + 2)))
    kernel = tf.concat([_swap_channels(part) for part in tf.split(kernel, groups, 0)], 0)
    return _conv(x, kernel, bias, [1] * axes, pads, dilation, groups)


def _swap_channels(kernel: tf.Tensor) -> tf.Tensor:
    return tf.transpose(kernel, [1, 0, *range(2, kernel.shape.rank)])


def _spread(x: tf.Tensor, axis: int, step: int) -> tf.Tensor:
    known = sizes(x)
    pads = [[0, 0]] * (axis + 1) + [[0, step - 1]] + [[0, 0]] * (len(known) - axis - 1)
    wide = tf.pad(tf.expand_dims(x, axis + 1), pads)
    wide = tf.reshape(wide, as_shape([*known[:axis], known[axis] * step, *known[axis + 1 :]]))
    return wide[along(axis, 0, known[axis] * step - (step - 1))]


def _register(axes: int) -> None:
    @aten(f"conv{axes}d")
    def _rule(
        x: tf.Tensor,
        weight: tf.Tensor,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> tf.Tensor:
        widths = pairs(dilation, axes)
        pads = _same_or_valid(padding, weight, widths)
        return _conv(x, weight, bias, pairs(stride, axes), pads, widths, groups)

    @aten(f"conv_transpose{axes}d")
    def _transposed_rule(
        x: tf.Tensor,
        weight: tf.Tensor,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> tf.Tensor:
        step, pad, more, width = (
            pairs(each, axes) for each in (stride, padding, output_padding, dilation)
        )
        return _transpose_convolution(x, weight, bias, step, pad, more, groups, width)


for _axes in (1, 2, 3):
    _register(_axes)


@aten("convolution")
def _convolution(
    x: tf.Tensor,
    weight: tf.Tensor,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> tf.Tensor:
    axes = weight.shape.rank - 2
    step, pad, width, more = (
        pairs(each, axes) for each in (stride, padding, dilation, output_padding)
    )
    if transposed:
        return _transpose_convolution(x, weight, bias, step, pad, more, groups, width)
    return _conv(x, weight, bias, step, [[n, n] for n in pad], width, groups)


def _fourier(name: str, is_inverse: bool) -> Callable[..., tf.Tensor]:
    transform = getattr(tf.signal, name)

    def rule(x: tf.Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> tf.Tensor:
        moved, order = with_last(x, axis_of(x, dim))
        count: Any = sizes(moved)[-1] if n is None else n
        if name == "irfft" and n is None:
            count = 2 * (count - 1)
        wanted = count // 2 + 1 if name == "irfft" else count
        if n is not None:
            more = tf.maximum(0, wanted - sizes(moved)[-1])
            moved = tf.pad(moved, [[0, 0]] * (x.shape.rank - 1) + [[0, more]])[..., :wanted]
        if name in ("fft", "ifft") and not moved.dtype.is_complex:
            moved = tf.cast(moved, tf.complex128 if moved.dtype == tf.float64 else tf.complex64)
        y = transform(moved, [count]) if name in ("rfft", "irfft") else transform(moved)
        power = {None: 0.0, "backward": 0.0, "ortho": 0.5, "forward": 1.0}[norm]
        if power:
            real = y.dtype.real_dtype
            scale = tf.pow(tf.cast(count, real), tf.cast(power if is_inverse else -power, real))
            y = y * tf.cast(scale, y.dtype)
        return moved_back(y, order)

    return rule


for _name in ("fft", "ifft", "rfft", "irfft"):
    aten(f"fft_{_name}")(_fourier(_name, _name.startswith("i")))
