"""Random arguments of a network, on which its outputs are compared."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from onepass.networks.condition_specs import shape_at
from onepass.step.random_weights import symbol_count
from onepass.step.tracing import Traces


class RandomInputs:
    """A source of random arguments for a network, two rows each, of at most `symbols` symbols."""

    def __init__(
        self,
        call: Traces,
        specs: Sequence[tf.TensorSpec],
        seed: int,
        symbols: int | None,
        sizes: Sequence[int],
    ) -> None:
        self._specs, self._generator = list(specs), np.random.default_rng(seed)
        self._symbols = 2  # every network of symbols accepts 0 and 1
        if specs[0].dtype.is_integer:
            rows, end = 2 if len(sizes) > 1 else 1, 1 + len(sizes)
            example = [tf.TensorSpec([rows, *sizes, *specs[0].shape[end:]], specs[0].dtype)]
            example += [tf.TensorSpec(shape_at(x, rows, sizes), x.dtype) for x in specs[1:]]
            self._symbols = min(symbols or 1 << 20, symbol_count(call.of(example).graph))

    def __call__(self, length: int) -> list[tf.Tensor]:
        """Return arguments of `length` steps."""
        return [
            self._numbers(spec, shape_at(spec, 2, [length]), 2 if index else self._symbols)
            for index, spec in enumerate(self._specs)
        ]

    def images(self, height: int, width: int) -> tf.Tensor:
        """Return two images."""
        spec = self._specs[0]
        return self._numbers(spec, [2, height, width, spec.shape[-1]], self._symbols)

    def _numbers(self, spec: tf.TensorSpec, shape: Sequence[int], symbols: int) -> tf.Tensor:
        return random_numbers(self._generator, spec, shape, symbols)


def random_numbers(
    generator: np.random.Generator, spec: tf.TensorSpec, shape: Sequence[int], symbols: int
) -> tf.Tensor:
    """Return normal floats, or integers below `symbols`, of the type of `spec`."""
    if spec.dtype.is_integer or spec.dtype.is_bool:
        return tf.cast(generator.integers(0, symbols, shape), spec.dtype)
    return tf.constant(generator.normal(size=shape), spec.dtype)
