"""The machine's matrix peak: TensorFlow's float32 product of two square matrices, all cores."""

import functools
import time

import numpy as np
import tensorflow as tf

PEAK = "matrix product"
PRODUCTS = 4


def peak_gflops(side: int = 2048) -> float:
    """Return the GFLOP/s of products of matrices [side, side]."""
    factor = _matrix(side)
    start = time.perf_counter()
    for _ in range(PRODUCTS):
        product = tf.matmul(factor, factor)
    product.numpy()
    return PRODUCTS * 2 * side**3 / (time.perf_counter() - start) / 1e9


@functools.cache
def _matrix(side: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).standard_normal([side, side], np.float32))
