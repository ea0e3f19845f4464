"""Compare a network's outputs at other sizes with those at the size it was built for."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from onepass.networks.conditions import FIXED_ENTRIES, is_at_rate
from onepass.step.verification import distances, with_random_weights

TOLERANCE = 1e-3  # rounding may differ between lengths
MORE = 3  # additional elements, or pixel rows and columns, in trials of larger sizes


class Trial:
    """A comparison on random inputs, with random weights in place of the trained ones.

    With the network's own weights, a head of zeros would hide every difference. The first outputs
    of a causal network depend neither on later inputs nor on the length, so they must equal those
    at the size that it was built for.
    """

    def __init__(
        self,
        candidate: Callable[..., tf.Tensor],
        reference: Callable[..., tf.Tensor],
        specs: Sequence[tf.TensorSpec],
        sizes: Sequence[int],
    ) -> None:
        self._candidate, self._reference = candidate, reference
        self._specs, self._sizes = list(specs), tuple(sizes)
        generator = np.random.default_rng(0)
        self._inputs = [self._draw_tensor(generator, spec) for spec in specs]

    def _draw_tensor(self, generator: np.random.Generator, spec: tf.TensorSpec) -> tf.Tensor:
        free = [size + MORE for size in self._sizes] if self._grows(spec) else []
        rest = [size or FIXED_ENTRIES for size in spec.shape[1 + len(free) :]]
        shape = [2, *free, *rest]
        integers = spec.dtype.is_integer
        drawn = generator.integers(0, 2, shape) if integers else generator.normal(size=shape)
        return tf.constant(drawn, spec.dtype)

    def _grows(self, spec: tf.TensorSpec) -> bool:
        return is_at_rate(spec, len(self._sizes))

    def is_equal(self) -> bool:
        """Return whether the first outputs at smaller sizes equal those at the original size."""
        first, *others = self._sizes
        fewer = [(max(1, first // 2), *others), (max(1, first - 1), *others), self._sizes]
        narrow = [(max(1, first // 2), *(max(1, x // 2) for x in others))] if others else []
        return self._equal(fewer, narrow)

    def is_equal_beyond(self) -> bool:
        """Return whether the network takes larger sizes, with the same first outputs."""
        first, *others = self._sizes
        wide = [(first + MORE, *(x + MORE for x in others))] if others else []
        return self._equal([(first + MORE, *others)], wide)

    def looks_ahead(self) -> bool:
        """Return whether the original network's first outputs depend on later inputs."""
        half = max(1, self._sizes[0] // 2)

        def distance(*inputs: tf.Tensor) -> tf.Tensor:
            whole = self._cut(inputs, self._sizes)
            other = tf.concat([whole[0][:, :half], tf.zeros_like(whole[0][:, half:])], 1)
            outputs = self._reference(*whole), self._reference(other, *whole[1:])
            return _distance(*(x[:, :half] for x in outputs))

        return self._exceeds(distance)

    def _equal(self, compared: Sequence[tuple], called: Sequence[tuple]) -> bool:
        def distance(*inputs: tf.Tensor) -> tf.Tensor:
            reference = self._reference(*self._cut(inputs, self._sizes))
            distances = []
            for sizes in (*compared, *called):
                outputs = self._candidate(*self._cut(inputs, sizes))
                if tuple(outputs.shape[1 : 1 + len(sizes)]) != sizes:
                    raise ValueError(f"the output has shape {outputs.shape}, not {sizes}")
                if sizes in compared:
                    rows = min(sizes[0], self._sizes[0])
                    distances.append(_distance(outputs[:, :rows], reference[:, :rows]))
            return tf.reduce_max(tf.stack(distances))

        return not self._exceeds(distance)

    def _cut(self, inputs: Sequence[tf.Tensor], sizes: Sequence[int]) -> list[tf.Tensor]:
        cut = (slice(None), *map(slice, sizes))
        return [
            x[cut] if self._grows(spec) else x for x, spec in zip(inputs, self._specs, strict=True)
        ]

    def _exceeds(self, distance: Callable[..., tf.Tensor]) -> bool:
        found = float(with_random_weights(distance, 0, *self._inputs)(*self._inputs))
        return not found <= TOLERANCE


def _distance(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    first, second = (tf.cast(x, tf.float64) for x in (first, second))
    size = tf.where(tf.math.is_finite(second), tf.abs(second), 0.0)
    return tf.reduce_max(distances(first, second) / (1.0 + size))
