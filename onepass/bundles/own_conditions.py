"""The conditions of a user's model as inputs of its bundle's signatures."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.condition_inputs import COUNT, FRAMES, input_of
from onepass.bundles.functions import Tensors
from onepass.bundles.signature import V2_NAMES, Signature, TensorInfo
from onepass.foundation.arguments import integer
from onepass.foundation.errors import UserError
from onepass.networks.condition_specs import Frames, Specs, as_specs, is_at_rate, plain, resize_spec
from onepass.networks.named_conditions import NamedConditions

FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)
# Inputs that belong to `frames`; conditions with their own inputs do without them.
COUNTS = ("num_frames", "frames_before", "frames_after")
Entries = int | Mapping[str, int | Sequence[int]] | None


class Conditions:
    """The conditions that a model reads, and their inputs.

    Inside the program, the conditions with one row per element of a sequence are concatenated along
    their channels to one tensor, `frames` [batch, time, channels].

    Args:
      entries: sizes for the axes of unknown size, in conditions that are the same at every time
        step: a number for all conditions, or numbers by the condition's name.

    Attributes:
      names: the name of each condition's input, by the condition's name.
      channels: size of the last axis of the frames; 0 if the model reads no frames.
      is_frames: whether the model has only one condition and its input is called `frames`, because
        the condition has one row per element of a sequence.
      at_frame_rate: whether a condition has a row for every few time steps. It is given for whole
        sequences, whose length is fixed.
    """

    def __init__(self, model: Any, entries: Entries = None):
        known = getattr(model, "conditions", None)
        specs = as_specs(model.condition_channels) if known is None else known
        self._axes = 1 if model.order == "time" else 2
        self._timed = {name for name, x in specs.items() if is_at_rate(x, self._axes)}
        self._specs = _fix_sizes(specs, self._timed, self._axes, entries)
        only = next(iter(specs.values())) if len(specs) == 1 else None
        self.is_frames = only is not None and self._axes == 1 and bool(self._timed)
        self.is_frames &= only is not None and only.shape.rank <= 3
        self.names = {name: input_of(name, len(specs)) for name in specs}
        self.names = dict.fromkeys(specs, FRAMES) if self.is_frames else self.names
        self._counts = {} if self.is_frames else _class_counts(model)
        timed = [self._specs[name] for name in specs if name in self._timed and self._axes == 1]
        self._sizes = [math.prod(spec.shape[2:]) for spec in timed]
        self.channels = sum(self._sizes)
        self.has_fixed = len(self._timed) < len(specs)
        self.at_frame_rate = any(isinstance(spec, Frames) for spec in specs.values())
        exact = self.is_frames or all(x.dtype.is_floating and x.dtype.size <= 4 for x in timed)
        self.dtype = tf.float32 if exact else tf.float64  # float64 represents integers up to 2^53

    @property
    def frame_channels(self) -> int:
        """Number of channels of the input `frames`; 0 if there is no such input."""
        return self.channels if self.is_frames else 0

    def infos(self, sizes: Sequence[int | None]) -> dict[str, TensorInfo]:
        """Return the inputs' descriptions by name; axes shared with elements have these `sizes`."""
        if self.is_frames:
            return {FRAMES: TensorInfo(FLOAT32, (None, *sizes, self.channels))}
        found = {}
        for name, spec in self._specs.items():
            shape = spec.shape.as_list()[1:]
            if name in self._timed:
                shape = [*sizes, *shape[self._axes :]]
            if isinstance(spec, Frames):
                shape[0] = None if sizes[0] is None else spec.count(sizes[0])
            count = self._counts.get(name)
            limits = (0, 1) if spec.dtype.is_bool else (0, count - 1) if count else (None, None)
            found[self.names[name]] = TensorInfo(_input_dtype(spec.dtype), (None, *shape), *limits)
        return found

    def of(self, given: Tensors, length: Any = None) -> Any:
        """Return the `condition` argument of the model's functions, for `length` steps."""
        if not self.names:
            return None
        named = {}
        for name, place in self.names.items():
            cut = name in self._timed and length is not None
            named[name] = given[place][:, :length] if cut else given[place]
        return named[next(iter(named))] if self.is_frames else named

    def select_fixed(self, given: Tensors) -> Tensors:
        """Return, by condition name, the inputs for conditions that are the same at every step."""
        return {n: given[place] for n, place in self.names.items() if n not in self._timed}

    def zeros(self) -> Tensors:
        """Return zeros with the names and shapes of the result of `select_fixed`, for one row."""
        return {
            name: tf.zeros([1, *spec.shape[1:]], spec.dtype)
            for name, spec in self._specs.items()
            if name not in self._timed
        }

    def name_inputs(self, signature: Signature) -> Signature:
        """Return a signature in which the inputs of the conditions replace `frames`."""
        if self.is_frames or not self.names:
            return signature
        inputs = dict(signature.inputs)
        if FRAMES in inputs:
            counted = {COUNT: inputs["num_frames"]}
            inputs = counted | {n: x for n, x in inputs.items() if n not in (FRAMES, *COUNTS)}
        return Signature({**inputs, **self.infos([None])}, signature.outputs)

    def count_inputs(self) -> dict[str, str]:
        """Return the inputs that have a time axis, each with the input that counts its length."""
        if self.is_frames:
            return {FRAMES: "num_frames"}
        return {place: COUNT for name, place in self.names.items() if name in self._timed}

    def join_frames(self, given: Tensors) -> Tensors:
        """Return the inputs; if conditions have separate inputs, add `frames` and its counts."""
        if self.is_frames or not self.channels:
            return given
        parts = []
        for name in self._specs:
            if name in self._timed:
                part = tf.cast(given[self.names[name]], self.dtype)
                shape = tf.concat([tf.shape(part)[:2], [math.prod(part.shape[2:])]], 0)
                parts.append(tf.reshape(part, shape))
        none = tf.zeros_like(given[COUNT])
        frames = tf.ensure_shape(tf.concat(parts, -1), [None, None, self.channels])
        counts = {"num_frames": given[COUNT], "frames_before": none, "frames_after": none}
        return {**given, FRAMES: frames, **counts}

    def split_frames(self, frames: tf.Tensor | None) -> Any:
        """Return `frames` as the condition that samplers read: split by name if it has several."""
        if frames is None or self.is_frames:
            return frames
        timed = {name: spec for name, spec in self._specs.items() if name in self._timed}
        parts = tf.split(frames, self._sizes, -1)
        found = {}
        for (name, spec), part in zip(timed.items(), parts, strict=True):
            shape = tf.concat([tf.shape(part)[:2], spec.shape[2:]], 0)
            part = tf.ensure_shape(tf.reshape(part, shape), [*part.shape[:2], *spec.shape[2:]])
            found[name] = tf.cast(part, spec.dtype)
        return NamedConditions(found, {})


def _fix_sizes(specs: Specs, timed: set[str], axes: int, entries: Entries) -> Specs:
    free = {
        name: sum(size is None for size in spec.shape[1 + isinstance(spec, Frames) :])
        for name, spec in specs.items()
        if name not in timed and None in spec.shape[1 + isinstance(spec, Frames) :]
    }
    given = _entries(entries, free)
    found = {}
    for name, spec in specs.items():
        if len(specs) > 1 and not re.fullmatch("[A-Za-z0-9_]+", name):
            raise _refuse_export(
                f"a condition is an input, named by letters, digits and _, not {name!r}"
            )
        if not spec.dtype.is_bool and np.dtype(_input_dtype(spec.dtype)) not in V2_NAMES:
            raise _refuse_export(
                f"its condition `{name}` must be of numbers, not {spec.dtype.name}"
            )
        shape = list(spec.shape)
        if name in timed and None in shape[1 + axes :]:
            raise _refuse_export(f"its condition `{name}` must have a known number of channels")
        if name in free:
            if name not in given:
                raise _refuse_export(
                    f"`entries` must say how many entries its condition `{name}` has, such as"
                    f' entries={{"{name}": 16}}'
                )
            sizes, first = iter(given[name]), 1 + isinstance(spec, Frames)
            rest = [next(sizes) if size is None else size for size in shape[first:]]
            shape = [*shape[:first], *rest]
        is_frames = isinstance(spec, Frames)
        found[name] = resize_spec(spec if is_frames else plain(spec), shape)
    return found


def _entries(entries: Entries, free: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    if entries is None:
        return {}
    by_name = entries if isinstance(entries, Mapping) else dict.fromkeys(free, entries)
    others = by_name.keys() - free.keys()
    if others or not free:
        known = ", ".join(free) or "none"
        raise ValueError(f"`entries` must be of conditions with an axis of any size: {known}.")
    found = {}
    for name, given in by_name.items():
        sizes = tuple(given) if isinstance(given, list | tuple) else (given,)
        is_whole = all((integer(size) or 0) > 0 for size in sizes)
        if not is_whole or len(sizes) != free[name]:
            count = f"{free[name]} numbers" if free[name] > 1 else "a number"
            raise ValueError(
                f"`entries` must be {count} of entries, at least 1, for `{name}`, got {given!r}."
            )
        found[name] = tuple(map(int, sizes))
    return found


def _refuse_export(reason: str) -> UserError:
    return UserError(f"The model cannot be exported: {reason}.")


def _class_counts(model: Any) -> dict[str, int]:
    return getattr(getattr(model, "symbol_network", None), "class_counts", {})


def _input_dtype(dtype: tf.DType) -> np.dtype:
    if dtype.is_bool:
        return INT32
    if dtype.is_floating and dtype.size <= 4:
        return FLOAT32
    return np.dtype(dtype.as_numpy_dtype)
