"""Call networks at lengths or image sizes other than those they were built for.

A Keras model's layers are called at the size of the input if they then reproduce the model's first
outputs, which in a causal network depend neither on later inputs nor on the length. Otherwise
shorter sequences are padded with zeros to the length that the network was built for; longer ones,
and other image sizes, are refused.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.runtime import check_eager
from onepass.networks.conditions import (
    FIXED_ENTRIES,
    Frames,
    KerasInputs,
    Memory,
    is_at_rate,
    random_tensor,
    resize_spec,
)
from onepass.networks.network import (
    ERRORS,
    SMALL,
    BakedSizeError,
    OtherSizes,
    as_function,
    built_sizes,
    graph_of,
    size_text,
)
from onepass.networks.trainable import attribute_of

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
        self._inputs = [random_tensor(generator, self._shape(x), x.dtype) for x in specs]

    def _shape(self, spec: tf.TensorSpec) -> list[int]:
        free = [size + MORE for size in self._sizes] if self._grows(spec) else []
        return [2, *free, *(size or FIXED_ENTRIES for size in spec.shape[1 + len(free) :])]

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
            outputs, others = self._reference(*whole), self._reference(other, *whole[1:])
            return _distance(outputs[:, :half], others[:, :half])

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
        from onepass.step.verification import with_random_weights  # its package imports this file

        found = float(with_random_weights(distance, 0, self._inputs)(self._inputs))
        return not found <= TOLERANCE


def _distance(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    from onepass.step.verification import distances

    first, second = (tf.cast(x, tf.float64) for x in (first, second))
    size = tf.where(tf.math.is_finite(second), tf.abs(second), 0.0)
    return tf.reduce_max(distances(first, second) / (1.0 + size))


Call = Callable[..., tf.Tensor]
CHANGES = "its outputs change with the size of its input"


class OneSize:
    """A network for the size that it was built for, to which shorter sequences are padded."""

    def __init__(
        self, call: Call, specs: Sequence[tf.TensorSpec], sizes: Sequence[int], reason: str
    ) -> None:
        # There is no second length to compare with, so that no step can be derived, either.
        self._call, self.sizes, self.no_step = call, tuple(sizes), reason
        self._grows = [spec.shape.rank > 1 and spec.shape[1] is None for spec in specs]

    def fault(self, sizes: tuple[int, ...]) -> str:
        """Return why the network cannot take a size; "" if it can."""
        is_longer = sizes[0] > self.sizes[0] if len(self.sizes) == 1 else sizes != self.sizes
        return self.no_step if is_longer else ""

    def __call__(self, *arguments: tf.Tensor) -> tf.Tensor:
        """Return the outputs for arguments up to `sizes`; raise ValueError for longer ones."""
        length = length_of(arguments[0])
        is_known = isinstance(length, int)
        if len(self.sizes) > 1 or (is_known and length == self.sizes[0]):
            return self._call(*arguments)
        if is_known and length > self.sizes[0]:
            raise ValueError(self.fault((length,)))
        pairs = zip(arguments, self._grows, strict=True)
        outputs = self._call(*(pad_time(x, self.sizes[0]) if grows else x for x, grows in pairs))
        return outputs[:, :length]


def length_of(values: tf.Tensor) -> int | tf.Tensor:
    """Return the length of values [batch, time, ...], a number if it is known in tracing."""
    return tf.shape(values)[1] if values.shape[1] is None else values.shape[1]


def pad_time(values: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Return values [batch, time, ...] padded with zeros at the end to `length` time steps."""
    behind = length - length_of(values)
    if isinstance(behind, int) and not behind:
        return values
    padded = tf.pad(values, [[0, 0], [0, behind], *[[0, 0]] * (len(values.shape) - 2)])
    if isinstance(length, int):
        padded.set_shape([values.shape[0], length, *values.shape[2:]])
    return padded


def pad_timed(
    arguments: Sequence[tf.Tensor], specs: Sequence[tf.TensorSpec], length: int | tf.Tensor
) -> list[tf.Tensor]:
    """Return arguments of which those with a time axis are padded to `length` time steps."""
    pairs = zip(arguments, specs, strict=True)
    return [pad_time(x, length) if is_at_rate(spec) else x for x, spec in pairs]


class UpTo:
    """A network that takes sizes up to `sizes`, [time] or [height, width], but no larger ones."""

    def __init__(self, call: Call, sizes: Sequence[int], reason: str) -> None:
        self._call, self._sizes, self._reason = call, tuple(sizes), reason

    def fault(self, sizes: tuple[int, ...]) -> str:
        """See `OneSize.fault`."""
        return "" if all(map(int.__le__, sizes, self._sizes)) else self._reason

    def __call__(self, *arguments: tf.Tensor) -> tf.Tensor:
        """Return the outputs."""
        return self._call(*arguments)


def any_length(
    network: Any, specs: Sequence[tf.TensorSpec], axes: int = 1
) -> tuple[Call, list[tf.TensorSpec]]:
    """Return a network as a function of tensors, for any length or, with 2 `axes`, image size.

    The first of the specs has sizes only where the network takes no others; a Keras model may set
    them.
    """
    check_eager(inside_function=True)
    given = tuple(specs[0].shape[1 : 1 + axes])
    is_given = len(given) == axes and None not in given
    was_built = _length_built(network) if axes == 1 else ()
    call = as_function(network, specs)
    if axes > 1 and len(specs) > 1:  # images with conditions are not tried at other sizes
        return call, list(specs)
    sizes = given if is_given else built_sizes(network, axes)
    if not sizes and was_built:  # twice the length: it may take multiples of some number
        takes_others = any(_takes(call, specs, n) for n in (SMALL, 2 * was_built[0]))
        sizes = () if takes_others else was_built
    if not sizes:
        return call, list(specs)
    found = _find_call(network, call, _free_sizes(specs, sizes), sizes)
    if getattr(found, "sizes", None) is None:
        return found, _free_sizes(specs, sizes)
    first = tf.TensorSpec([None, *sizes, *specs[0].shape[1 + axes :]], specs[0].dtype)
    return found, [first, *_free_sizes(specs, sizes)[1:]]


def _length_built(network: Any) -> tuple[int, ...]:
    config = attribute_of(network, "get_build_config")
    if config is None or KerasInputs(network).specs:
        return ()
    try:
        shape = list((config() or {}).get("input_shape") or ())
        return tuple(size for size in shape[1:2] if isinstance(size, int))
    except (*ERRORS, NotImplementedError, KeyError):
        return ()


def _takes(call: Call, specs: Sequence[tf.TensorSpec], length: int) -> bool:
    try:
        call(*(tf.zeros([1, *(size or length for size in x.shape[1:])], x.dtype) for x in specs))
    except ERRORS:
        return False
    return True


def _free_sizes(specs: Sequence[tf.TensorSpec], sizes: Sequence[int]) -> list[tf.TensorSpec]:
    opened, axes = [], len(sizes)
    for index, spec in enumerate(specs):
        shape = spec.shape.as_list()
        is_as_long = tuple(shape[1 : 1 + axes]) == tuple(sizes)
        is_as_long &= not isinstance(spec, Memory | Frames)
        if not index or is_as_long:
            shape[1 : 1 + axes] = [None] * axes
        opened.append(resize_spec(spec, shape))
    return opened


Found = tuple[int | None, str]  # index of the candidate, and why it takes no larger size
_KNOWN: "weakref.WeakKeyDictionary[Any, dict[Any, Found]]" = weakref.WeakKeyDictionary()


def _find_call(
    network: Any, call: Call, specs: list[tf.TensorSpec], sizes: tuple[int, ...]
) -> Call:
    candidates: list[Call] = [call]
    if graph_of(network) is not None:
        candidates = [OtherSizes(network, sizes, each) for each in ("", "all", "first")]
    key = (sizes, *((tuple(spec.shape), spec.dtype) for spec in specs))
    try:
        known = _KNOWN.setdefault(network, {})
    except TypeError:  # the network cannot be weakly referenced
        known = {}
    if key not in known:
        with tf.init_scope():
            known[key] = _choose_candidate(candidates, call, specs, sizes)
    number, reason = known[key]
    if number is None:
        return OneSize(call, specs, sizes, reason)
    return UpTo(candidates[number], sizes, reason) if reason else candidates[number]


def _choose_candidate(
    candidates: Sequence[Call], call: Call, specs: Sequence[tf.TensorSpec], sizes: tuple[int, ...]
) -> Found:
    """Return the index of the first candidate equal to the network, and why it cannot be larger.

    The index is None if no candidate equals the network; the second value then says why.
    """
    faults = []
    for number, candidate in enumerate(candidates):
        trial = Trial(candidate, call, specs, sizes)
        faults.append(_reason(trial.is_equal, "others"))
        # A later check names the layer of a network that looks ahead.
        if not faults[-1] or (faults[-1] == CHANGES and trial.looks_ahead()):
            more = _reason(trial.is_equal_beyond, "more")
            return number, more and f"it was built for {size_text(sizes)}, and {more}"
    return None, f"it was built for {size_text(sizes)}, and {faults[0]}"


def _reason(is_equal: Callable[[], bool], others: str) -> str:
    try:
        return "" if is_equal() else CHANGES
    except BakedSizeError as error:
        return f"its layer `{error.layer}` takes no {others}"
    except ERRORS:
        return f"takes no {others}"
