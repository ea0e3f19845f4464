"""Specs of conditions: with the elements' time axis, constant, in frames, or with an axis apart."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import tensorflow as tf

from onepass.foundation.arguments import whole_number

# Size given to axes of unknown size, in arguments without a time axis, when a network is analysed.
FIXED_ENTRIES = 7
# The default name of a model's only condition.
ONLY = "condition"


class Memory(tf.TensorSpec):
    """The spec of a condition with a separate axis, such as an encoder's outputs.

    Args:
      shape: [None, entries, ...]; `entries` is None if each call may have a different number.
      dtype: type of the condition's entries.
    """

    __slots__ = ()


class Frames(tf.TensorSpec):
    """The spec of a condition at a frame rate, such as a mel spectrogram.

    Whatever the network computes of it is computed once for each call, from all frames, so that it
    may look ahead in them.

    Args:
      shape: [None, None, ...], or a spec of this shape; the second axis is that of the frames.
      dtype: type of the condition's entries.
      hop: number of time steps of a frame. The last frame may be partial.
      extra: number of frames beyond those of the sequence, such as both sides of a convolution of
        frames that pads nothing.

    Raises:
      ValueError: `shape`, `hop` or `extra` is invalid.
    """

    __slots__ = ("extra", "hop")

    def __init__(
        self, shape: Any, dtype: tf.DType = tf.float32, *, hop: int, extra: int = 0
    ) -> None:
        if isinstance(shape, tf.TensorSpec):
            shape, dtype = shape.shape, shape.dtype
        super().__init__(shape, dtype)
        if (self.shape.rank or 0) < 2 or self.shape[1] is not None:
            raise ValueError(f"`shape` of Frames must be [None, None, ...], got {self.shape}.")
        self.hop = whole_number(hop, "hop")
        self.extra = whole_number(extra, "extra", least=0)

    def count(self, length: Any) -> Any:
        """Return the number of frames of `length` time steps, a number or a tensor."""
        return -(-length // self.hop) + self.extra


Specs = dict[str, tf.TensorSpec]


def resize_spec(spec: tf.TensorSpec, shape: Any) -> tf.TensorSpec:
    """Return a spec of the same kind and dtype with another shape."""
    if isinstance(spec, Frames):
        return Frames(shape, spec.dtype, hop=spec.hop, extra=spec.extra)
    return type(spec)(shape, spec.dtype)


def is_at_rate(spec: tf.TensorSpec, axes: int = 1) -> bool:
    """Return whether an argument has the elements' `axes`: 1 of time, or 2 of images."""
    if isinstance(spec, Memory | Frames) or spec.shape.rank <= axes:
        return False
    return all(size is None for size in spec.shape[1 : 1 + axes])


def plain(spec: tf.TensorSpec) -> tf.TensorSpec:
    """Return a spec as a plain `tf.TensorSpec`, for signatures of functions."""
    return tf.TensorSpec(spec.shape, spec.dtype)


def shape_at(spec: tf.TensorSpec, batch: int, sizes: Sequence[int]) -> list[int]:
    """Return an argument's shape for elements [batch, *sizes]; free axes get `FIXED_ENTRIES`."""
    axes = len(sizes)
    if is_at_rate(spec, axes):
        return [batch, *sizes, *(size or FIXED_ENTRIES for size in spec.shape[1 + axes :])]
    if isinstance(spec, Frames):
        return [batch, spec.count(sizes[0]), *(size or FIXED_ENTRIES for size in spec.shape[2:])]
    return [batch, *(size or FIXED_ENTRIES for size in spec.shape[1:])]


def as_specs(given: Any) -> Specs:
    """Return specs by name, of None, 0, a channel count, a spec, or specs in a dict or list."""
    if given is None or (isinstance(given, Integral) and given == 0):
        return {}
    if isinstance(given, Integral):
        given = tf.TensorSpec([None, None, given])
    if isinstance(given, tf.TensorSpec):
        given = {ONLY: given}
    if not isinstance(given, Mapping):
        count = len(given) if isinstance(given, list | tuple) else 0
        given = dict(zip(default_names(count), given, strict=True)) if count else {"": given}
    for name, spec in given.items():
        is_spec = isinstance(spec, tf.TensorSpec) and spec.shape.rank
        if not is_spec or not isinstance(name, str) or not name or spec.shape[0] is not None:
            raise ValueError(
                "`conditions` must be a tf.TensorSpec, onepass.Memory or Frames [None, ...],"
                f" or a dict of them by name, got {spec!r}."
            )
    return dict(given)


def default_names(count: int) -> list[str]:
    """Return default names for `count` unnamed conditions."""
    return [ONLY] if count == 1 else [f"{ONLY}_{place}" for place in range(1, count + 1)]


def conditions_of(network: Any) -> Specs:
    """Return the specs of the conditions that a `SymbolNetwork` reads, by name."""
    found = getattr(network, "conditions", None)
    return as_specs(network.condition) if found is None else found


def only_rate(specs: Specs) -> tf.TensorSpec | None:
    """Return the spec of the only condition, if it has the elements' time axis; else None."""
    found = list(specs.values())
    return found[0] if len(found) == 1 and is_at_rate(found[0]) else None


def zeros_for(network: Any, batch: int, sizes: Sequence[int]) -> list[Any]:
    """Return zeros for a network's conditions: a list of one tensor or dict by name, or []."""
    specs = conditions_of(network)
    made = {name: tf.zeros(shape_at(x, batch, sizes), x.dtype) for name, x in specs.items()}
    if only_rate(specs) is not None:
        return list(made.values())
    return [made] if made else []


def describe_spec(spec: tf.TensorSpec, axes: int = 1) -> str:
    """Return a spec in readable form, such as "int32 [num]"."""
    names = ["time"] if axes == 1 else ["height", "width"]
    names = [f"frames of {spec.hop}"] if isinstance(spec, Frames) else names
    has_places = isinstance(spec, Frames) or is_at_rate(spec, axes)
    places = dict(enumerate(names, 1)) if has_places else {}
    sizes = [str(places.get(n, size or "any")) for n, size in enumerate(spec.shape) if n]
    return f"{spec.dtype.name} [{', '.join(['num', *sizes])}]"
