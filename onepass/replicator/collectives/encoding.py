"""Encode tensors of any dtype as float32, float64 or int64, the dtypes that can be summed.

There are two encodings: as numbers, for sums, and as bits, for values that must arrive unchanged.
int32 is not used because TensorFlow keeps it on the host, and mirrored strategies cannot reduce
several of them at once. A TPU sums int32 but not int64, so it sums the 64 bits in four limbs.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

_SUMMABLE = (tf.float32, tf.float64, tf.int64)
_INTEGERS = (tf.bool, tf.int8, tf.int16, tf.int32, tf.uint8, tf.uint16, tf.uint32)
_WIDENED = {tf.float16: tf.float32, tf.bfloat16: tf.float32} | {
    dtype: tf.int64 for dtype in _INTEGERS
}
_SAME_BITS = {
    tf.float32: tf.int32,
    tf.float64: tf.int64,
    tf.float16: tf.int16,
    tf.bfloat16: tf.int16,
    tf.uint64: tf.int64,
    tf.complex64: tf.int64,
    tf.complex128: tf.int64,
}
# Byte b is encoded as b + 1; 0 marks the end of a string.
_CHARACTERS = [b"", *(bytes([byte]) for byte in range(256))]


def is_number(dtype: tf.DType) -> bool:
    """Return whether values of the dtype can be summed."""
    return dtype != tf.bool and (dtype in _SUMMABLE or dtype in _WIDENED or dtype in _SAME_BITS)


def is_ordered(dtype: tf.DType) -> bool:
    """Return whether values of the dtype are ordered and so have a minimum and a maximum."""
    return is_number(dtype) and not dtype.is_complex


def sum_as_numbers(
    tensors: list[tf.Tensor], sum_over_replicas: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]
) -> list[tf.Tensor]:
    """Return sums of numeric tensors: half precision in float32, rounded once; integers wrap."""
    sums = sum_over_replicas([_to_numbers(tensor) for tensor in tensors])
    return [_from_numbers(s, t.dtype) for s, t in zip(sums, tensors, strict=True)]


def _to_numbers(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype.is_complex:
        return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
    if tensor.dtype == tf.uint64:
        return tf.bitcast(tensor, tf.int64)
    return tf.cast(tensor, _WIDENED.get(tensor.dtype, tensor.dtype))


def _from_numbers(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.is_complex:
        return tf.complex(tensor[0], tensor[1])
    return tf.bitcast(tensor, dtype) if dtype == tf.uint64 else tf.cast(tensor, dtype)


def to_bits(tensor: tf.Tensor) -> tf.Tensor:
    """Return the bits of a tensor (not of strings) as int64, which a sum with zeros keeps."""
    if tensor.dtype in _SAME_BITS:
        tensor = tf.bitcast(tensor, _SAME_BITS[tensor.dtype])
    if tensor.dtype != tf.int64 and tensor.dtype not in _INTEGERS:
        raise ValueError(
            f"Tensors of type {tensor.dtype.name} cannot be exchanged between replicas."
        )
    return tf.cast(tensor, tf.int64)


def from_bits(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the tensor that `to_bits` encoded, given its bits and dtype."""
    if dtype not in _SAME_BITS:
        return tf.cast(tensor, dtype)
    return tf.bitcast(tf.cast(tensor, _SAME_BITS[dtype]), dtype)


def to_limbs(tensor: tf.Tensor) -> tf.Tensor:
    """Split int64 [...] into int32 [..., 4] of 16 bits; up to 32,768 sum without overflow."""
    return tf.cast(tf.bitcast(tensor, tf.uint16), tf.int32)


def from_limbs(limbs: tf.Tensor) -> tf.Tensor:
    """Return int64 [...] from sums of limbs, int32 [..., 4], modulo 2^64."""
    shifts = tf.constant([0, 16, 32, 48], tf.int64)
    return tf.reduce_sum(tf.bitwise.left_shift(tf.cast(limbs, tf.int64), shifts), -1)


def longest(tensor: tf.Tensor) -> tf.Tensor:
    """Return the length in bytes of the longest string, at least 1, as int32 []."""
    return tf.maximum(tf.reduce_max(tf.strings.length(tensor)), 1)


def to_bytes(tensor: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Return strings [...] as int32 [..., width]: each byte plus 1, then zeros after the last."""
    data = tf.cast(tf.io.decode_raw(tensor, tf.uint8, fixed_length=width), tf.int32)
    inside = tf.range(width) < tf.strings.length(tensor)[..., tf.newaxis]
    return tf.where(inside, data + 1, 0)


def from_bytes(numbers: tf.Tensor) -> tf.Tensor:
    """Return the strings [...] that `to_bytes` encoded as int32 [..., width]."""
    return tf.strings.reduce_join(tf.gather(tf.constant(_CHARACTERS), numbers), axis=-1)
