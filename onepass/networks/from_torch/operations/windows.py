"""Rules for padding, resampling and pooling."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onepass.networks.from_torch.operations.shapes import Sizes, repeat_interleave
from onepass.networks.from_torch.table import along, as_dtype, aten, is_tensor, pairs, sizes


def _edges(x: tf.Tensor, axis: int, before: int, after: int, mode: str) -> tf.Tensor:
    """Return a tensor that continues along one axis by reflecting, repeating or going around."""
    if mode == "reflect":
        pads = [[before, after] if n == axis else [0, 0] for n in range(x.shape.rank)]
        return tf.pad(x, pads, "REFLECT")
    if mode == "circular":
        size = sizes(x)[axis]
        low, high = x[along(axis, size - before, None)], x[along(axis, 0, after)]
    else:
        tiles = [[n if k == axis else 1 for k in range(x.shape.rank)] for n in (before, after)]
        low, high = (
            tf.tile(x[along(axis, 0, 1)], tiles[0]),
            tf.tile(x[along(axis, -1, None)], tiles[1]),
        )
    return tf.concat([low, x, high], axis)


@aten("pad", "constant_pad_nd")
def _pad(x: tf.Tensor, pads: Sizes, mode: Any = "constant", value: Any = None) -> tf.Tensor:
    mode, value = ("constant", mode) if not isinstance(mode, str) else (mode, value)
    around: list[list[Any]] = [[0, 0] for _ in range(x.shape.rank)]
    for place in range(len(pads) // 2):
        axis = x.shape.rank - 1 - place
        low, high = pads[2 * place : 2 * place + 2]
        cut = [not is_tensor(each) and each < 0 for each in (low, high)]
        if any(cut):
            x = x[along(axis, -low if cut[0] else None, high if cut[1] else None)]
        around[axis] = [0 if away else each for each, away in zip((low, high), cut, strict=True)]
        if mode != "constant" and any(around[axis]):
            x = _edges(x, axis, around[axis][0], around[axis][1], mode)
    if mode != "constant" or not any(is_tensor(n) or n for pair in around for n in pair):
        return x
    if not value:
        return tf.pad(x, around)
    return tf.pad(x, around, constant_values=as_dtype(value, x.dtype))


def _padding(mode: str) -> Callable[..., tf.Tensor]:
    return lambda x, pads: _pad(x, pads, mode)


for _axes in (1, 2, 3):
    aten(f"reflection_pad{_axes}d")(_padding("reflect"))
    aten(f"replication_pad{_axes}d")(_padding("replicate"))


def _scales(x: tf.Tensor, size: Any, scales: Any) -> list[tuple[Any, float | None]]:
    """Return the new size, and the scale if it is given, of every axis after the channels."""
    old = sizes(x)[2:]
    if scales is None:
        return [(new, None) for new in size]
    scaled = []
    for known, scale in zip(old, scales, strict=True):
        whole = float(scale).is_integer()
        new = (
            known * int(scale)
            if whole
            else tf.cast(tf.floor(tf.cast(known, tf.float64) * scale), tf.int32)
        )
        scaled.append((int(known * scale) if not is_tensor(known) else new, scale))
    return scaled


@aten("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest(x: tf.Tensor, size: Any, scales: Any = None, *more: Any) -> tf.Tensor:
    scales = [scales, *more] if isinstance(scales, float) else scales
    for axis, (new, scale) in enumerate(_scales(x, size, scales), 2):
        if scale is not None and float(scale).is_integer():
            x = repeat_interleave(x, int(scale), axis)
        else:
            ratio = 1 / scale if scale else sizes(x)[axis] / new
            places = tf.floor(tf.cast(tf.range(new), tf.float32) * tf.cast(ratio, tf.float32))
            x = tf.gather(x, tf.minimum(tf.cast(places, tf.int32), sizes(x)[axis] - 1), axis=axis)
    return x


@aten("upsample_linear1d", "upsample_bilinear2d")
def _linear(
    x: tf.Tensor, size: Any, align_corners: bool, scales: Any = None, *more: Any
) -> tf.Tensor:
    scales = [scales, *more] if isinstance(scales, float) else scales
    for axis, (new, scale) in enumerate(_scales(x, size, scales), 2):
        old, places = sizes(x)[axis], tf.cast(tf.range(new), tf.float32)
        if align_corners:
            places = places * tf.cast((old - 1) / max(new - 1, 1), tf.float32)
        else:
            ratio = tf.cast(1 / scale if scale else old / new, tf.float32)
            places = tf.maximum((places + 0.5) * ratio - 0.5, 0.0)
        low = tf.minimum(tf.cast(places, tf.int32), old - 1)
        high = tf.minimum(low + 1, old - 1)
        share = tf.cast(places - tf.cast(low, tf.float32), x.dtype)
        share = tf.reshape(share, [-1] + [1] * (x.shape.rank - axis - 1))
        x = (1 - share) * tf.gather(x, low, axis=axis) + share * tf.gather(x, high, axis=axis)
    return x


def _windows(x: tf.Tensor, axis: int, size: int, step: int, width: int) -> list[tf.Tensor]:
    """Return the elements of every window along an axis, one tensor for each place in a window."""
    span = (sizes(x)[axis] - (size - 1) * width - 1) // step * step + 1
    return [x[along(axis, n * width, n * width + span, step)] for n in range(size)]


def _pool(axes: int, is_max: bool) -> Callable[..., tf.Tensor]:
    def rule(
        x: tf.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, *rest: Any
    ) -> tf.Tensor:
        dilation, rest = (rest[0], rest[1:]) if is_max and rest else (1, rest)
        ceil_mode, *others = rest or (False,)
        if ceil_mode or (
            not is_max and others and others[0] is False and any(pairs(padding, axes))
        ):
            raise ValueError("pooling must have ceil_mode=False and count_include_pad=True")
        kernel = pairs(kernel, axes)
        pads = [n for pad in reversed(pairs(padding, axes)) for n in (pad, pad)]
        x = _pad(x, pads, "constant", x.dtype.min if is_max else None)
        steps, widths = pairs(stride or kernel, axes), pairs(dilation, axes)
        for place in range(axes):
            axis = x.shape.rank - axes + place
            parts = _windows(x, axis, kernel[place], steps[place], widths[place])
            total = parts[0]
            for part in parts[1:]:
                total = tf.maximum(total, part) if is_max else total + part
            x = total
        return x if is_max else x / tf.cast(math.prod(kernel), x.dtype)

    return rule


for _axes in (1, 2, 3):
    aten(f"max_pool{_axes}d")(_pool(_axes, True))
    aten(f"avg_pool{_axes}d")(_pool(_axes, False))
