"""The functions of users' models, with their conditions as inputs.

Sequences whose network has a step are generated piece by piece, like sound (`sequence_functions`).
Images, and other sequences, have one shape and are sampled by passes over the whole array.
`log_prob` returns the log probability of every element. A network that computes something else when
traced for any length (Keras' `TimeDistributed`) runs on rows padded to one of a few lengths; since
it is causal, the padding changes nothing before it.
"""

import copy
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.bundles.function import FLOAT32, INT32, ROWS_AT_ONCE, Function, Tensors, name_variables
from onepass.bundles.sequence_functions import (
    Conditioning,
    Maybe,
    NoiseSource,
    Size,
    State,
    StreamingRows,
)
from onepass.bundles.signature import V2_NAMES, Signature, TensorInfo, input_of
from onepass.foundation.rules import UserError, integer
from onepass.likelihoods.distribution import pixel_channels, tempers
from onepass.model import Autoregressive
from onepass.networks.conditions import (
    NOTHING,
    Condition,
    Frames,
    Specs,
    as_specs,
    is_at_rate,
    plain,
    resize_spec,
)
from onepass.networks.conditions import first_state as state_before
from onepass.samplers import cached_chunk
from onepass.storage.save import LENGTHS, first_fault, function_of, network_specs

CALL = "call"


def pad_log_prob(model: Autoregressive, lengths: Sequence[int]) -> Autoregressive:
    """Return a model whose `log_prob` may be traced for rows of any length up to the longest.

    It is the same one if its graph does not depend on the length, or if it has conditions or rows
    longer than those that are stored.
    """
    network = model.symbol_network
    if model.conditions or lengths[-1] > LENGTHS[-1]:  # loops over time are written out
        return model
    any_length = function_of(network.exact, network_specs(model))
    if not first_fault(network.exact, any_length, [network.inputs]):
        return model

    def log_prob(elements: tf.Tensor, condition: Any = None) -> tf.Tensor:
        time = tf.shape(elements)[1]

        def at_length(length: int) -> tf.Tensor:
            # The last element is repeated, which is one of the model's whatever they are.
            index = tf.minimum(tf.range(length), time - 1)
            rows = tf.gather(elements, index, axis=1)
            return model.log_prob(rows, condition)[:, :time]

        branch = tf.reduce_sum(tf.cast(time > tf.constant(lengths[:-1], tf.int32), tf.int32))
        return tf.switch_case(branch, [functools.partial(at_length, length) for length in lengths])

    padded = copy.copy(model)
    padded.__dict__["log_prob"] = log_prob
    return padded


Entries = int | Mapping[str, int | Sequence[int]] | None


class Conditions:
    """The conditions that a model reads, and their inputs; `entries` are those of `export`.

    Inside the program, the conditions with one row per element of a sequence are concatenated along
    their channels to one tensor, `frames` [batch, time, channels]; `is_frames` if the input of the
    only condition is that. A condition `at_frame_rate`, with a row for every few time steps, is
    given for whole sequences, whose length is fixed.
    """

    def __init__(self, model: Any, entries: Entries = None):
        known = getattr(model, "conditions", None)
        specs = as_specs(model.condition_channels) if known is None else known
        self._axes = 1 if model.order == "time" else 2
        timed = {name for name, x in specs.items() if is_at_rate(x, self._axes)}
        self._specs = _fix_sizes(specs, timed, self._axes, entries)
        self._timed = {name: spec for name, spec in self._specs.items() if name in timed}
        in_time = list(self._timed.values()) if self._axes == 1 else []
        only = in_time[0] if len(specs) == len(in_time) == 1 else None
        self.is_frames = only is not None and only.shape.rank == 3 and only.dtype.is_floating
        self.names = {n: "frames" if self.is_frames else input_of(n, len(specs)) for n in specs}
        network = getattr(model, "symbol_network", None)
        self._counts = {} if self.is_frames else getattr(network, "class_counts", {})
        self._sizes = [math.prod(spec.shape[2:]) for spec in in_time]
        self.channels = sum(self._sizes)
        self.has_fixed = len(self._timed) < len(specs)
        self.at_frame_rate = any(isinstance(spec, Frames) for spec in specs.values())
        exact = all(x.dtype.is_floating and x.dtype.size <= 4 for x in in_time)
        self.dtype = tf.float32 if exact else tf.float64  # float64 represents integers up to 2^53

    def infos(self, sizes: Sequence[int | None]) -> dict[str, TensorInfo]:
        """Return the inputs' descriptions by name; axes shared with elements have these `sizes`."""
        found = {}
        for name, spec in self._specs.items():
            shape = spec.shape.as_list()[1:]
            if name in self._timed:
                shape = [*sizes, *shape[self._axes :]]
            if isinstance(spec, Frames):
                shape[0] = None if sizes[0] is None else spec.count(sizes[0])
            count = self._counts.get(name)
            high = 1 if spec.dtype.is_bool else count - 1 if count else None
            low, dtype = None if high is None else 0, _input_dtype(spec.dtype)
            found[self.names[name]] = TensorInfo(dtype, (None, *shape), low, high)
        return found

    def of(self, given: Tensors, length: Any = None) -> Tensors:
        """Return the conditions by name, for `length` steps."""
        named = {name: given[place] for name, place in self.names.items()}
        cut = {} if length is None else self._timed
        return {n: x[:, :length] if n in cut else x for n, x in named.items()}

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

    def join_frames(self, given: Tensors) -> Tensors:
        """Return the inputs; if conditions have separate inputs, add `frames` and its counts."""
        if self.is_frames or not self.channels:
            return given
        parts = []
        for name, size in zip(self._timed, self._sizes, strict=True):
            part = tf.cast(given[self.names[name]], self.dtype)
            parts.append(tf.reshape(part, tf.concat([tf.shape(part)[:2], [size]], 0)))
        none = tf.zeros_like(given["num_samples"])
        frames = tf.ensure_shape(tf.concat(parts, -1), [None, None, self.channels])
        counts = {"num_frames": given["num_samples"], "frames_before": none, "frames_after": none}
        return {**given, "frames": frames, **counts}

    def split_frames(self, frames: tf.Tensor | None) -> Condition:
        """Return `frames` as the condition that samplers read, without what does not change."""
        if frames is None:
            return NOTHING
        parts, found = tf.split(frames, self._sizes, -1), {}
        for (name, spec), part in zip(self._timed.items(), parts, strict=True):
            shape = tf.concat([tf.shape(part)[:2], spec.shape[2:]], 0)
            part = tf.ensure_shape(tf.reshape(part, shape), [*part.shape[:2], *spec.shape[2:]])
            found[name] = tf.cast(part, spec.dtype)
        return Condition(found, {})


def _fix_sizes(specs: Specs, timed: set[str], axes: int, entries: Entries) -> Specs:
    shapes = {name: list(spec.shape) for name, spec in specs.items()}
    first = {name: 1 + isinstance(spec, Frames) for name, spec in specs.items()}
    counts = {name: shape[first[name] :].count(None) for name, shape in shapes.items()}
    free = {name: count for name, count in counts.items() if count and name not in timed}
    given, found = _entries(entries, free), {}
    for name, spec in specs.items():
        if len(specs) > 1 and not re.fullmatch("[A-Za-z0-9_]+", name):
            raise _refuse_export(
                f"a condition is an input, named by letters, digits and _, not {name!r}"
            )
        if not spec.dtype.is_bool and np.dtype(_input_dtype(spec.dtype)) not in V2_NAMES:
            raise _refuse_export(
                f"its condition `{name}` must be of numbers, not {spec.dtype.name}"
            )
        shape = shapes[name]
        if name in timed and None in shape[1 + axes :]:
            raise _refuse_export(f"its condition `{name}` must have a known number of channels")
        if name in free:
            if name not in given:
                raise _refuse_export(
                    f"`entries` must say how many entries its condition `{name}` has, such as"
                    f' entries={{"{name}": 16}}'
                )
            sizes, free_axes = iter(given[name]), slice(first[name], None)
            shape[free_axes] = [next(sizes) if n is None else n for n in shape[free_axes]]
        found[name] = resize_spec(spec if isinstance(spec, Frames) else plain(spec), shape)
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


def _input_dtype(dtype: tf.DType) -> np.dtype:
    if dtype.is_bool:
        return INT32
    if dtype.is_floating and dtype.size <= 4:
        return FLOAT32
    return np.dtype(dtype.as_numpy_dtype)


PIECES = (256, 1024)  # largest numbers of elements that are compiled as one piece


class StreamingSequence(StreamingRows):
    """A user's model in time order, which continues from a state."""

    hop_samples, side_frames, speakers = 1, 0, 0
    clips = False
    largest_feature: float | None = None

    def __init__(
        self, model: Any, longest: int, first: Any, networks: list[Any], conditions: Conditions
    ):
        super().__init__(first)
        self.variables = name_variables(each.get_concrete_function() for each in networks)
        self._model, self._longest = model, longest
        self.conditions, self.dtype = conditions, conditions.dtype
        self.feature_channels = self.channels = conditions.channels
        self.output = "elements" if model.sample_rate_hz is None else "sound"
        short = min(PIECES[0], longest)
        self.pieces: tuple[int, int] = (short, max(short, min(PIECES[1], longest) // short * short))

    def begin_rows(self, given: Tensors, state: State) -> State:
        """Return the state; rows at position 0, or all without `start`, get the first state."""
        fixed, start = self.conditions.select_fixed(given), given.get("start")
        if not fixed:
            return state

        def row(n: tf.Tensor) -> State:
            def first() -> State:
                made = self._state_of({name: x[n][tf.newaxis] for name, x in fixed.items()})
                return {name: value[0] for name, value in self.pack_state(made).items()}

            if start is None:
                return first()
            # Only for rows at position 0, as it may run networks over the conditions.
            return tf.cond(start[n] == 0, first, lambda: {name: x[n] for name, x in state.items()})

        return tf.map_fn(
            row,
            tf.range(tf.shape(next(iter(fixed.values())))[0]),
            fn_output_signature={n: tf.TensorSpec(x.shape[1:], x.dtype) for n, x in state.items()},
            parallel_iterations=ROWS_AT_ONCE,
        )

    def row_infos(self, longest: int) -> dict[str, TensorInfo]:
        """See `StreamingModel.row_infos`."""
        if self.conditions.is_frames:
            return super().row_infos(longest)
        count = TensorInfo(INT32, (None,), 1, longest)
        return {"num_samples": count, **self.conditions.infos([None])}

    def join_frames(self, given: Tensors) -> Tensors:
        """Return the inputs with the conditions that have a time axis concatenated to `frames`."""
        return self.conditions.join_frames(given)

    def condition_infos(self, samples: int) -> dict[str, TensorInfo]:
        """See `StreamingModel.condition_infos`."""
        return self.conditions.infos([samples])

    def fixed_infos(self) -> dict[str, TensorInfo]:
        """See `StreamingModel.fixed_infos`."""
        fixed = self.conditions.select_fixed({n: n for n in self.conditions.names.values()})
        return {n: x for n, x in self.conditions.infos([None]).items() if n in fixed.values()}

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size
    ) -> Conditioning:
        """Return the frames of the segment, exactly one per element, without neighbours."""
        del speaker, phase
        return Conditioning(None if frames is None else frames[:, skipped:][:, :samples])

    def unpack_state(self, start: tf.Tensor | None, state: State) -> Any:
        """See `StreamingRows.unpack_state`."""
        # A first state that depends on the conditions is made by `begin_rows`.
        return super().unpack_state(None if self.conditions.has_fixed else start, state)

    def _state_of(self, fixed: Tensors) -> Any:
        raise NotImplementedError


class StreamingAutoregressive(StreamingSequence):
    """The streaming form of an `Autoregressive`, which draws one element after another."""

    def __init__(self, model: Autoregressive, longest: int, conditions: Conditions):
        network = model.symbol_network
        call = function_of(network.call, network_specs(model))
        first = state_before(network, 1, longest, Condition({}, conditions.zeros()))
        super().__init__(model, longest, first, [call], conditions)
        self.tempers = tempers(model.distribution)

    def _state_of(self, fixed: Tensors) -> Any:
        network = self._model.symbol_network
        return state_before(network, 1, self._longest, Condition({}, fixed))

    def noise(self, source: NoiseSource, samples: int) -> tf.Tensor:
        """See `StreamingModel.noise`."""
        row = tf.ensure_shape(source.row, [1])
        return self._model.distribution.noise(source.key[0], row, source.start[0], samples)

    def draw_next(
        self, temperature: tf.Tensor, noise: tf.Tensor, channels: Maybe, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """See `StreamingRows.draw_next`."""
        model, condition = self._model, self.conditions.split_frames(channels)
        symbols, after = cached_chunk(
            model.symbol_network, model.distribution, noise, condition, temperature, state
        )
        return model.codec.decode(symbols), after


class StreamingFlows(StreamingSequence):
    """The streaming form of a student, which computes a piece's elements from its noise at once."""

    def __init__(self, student: FlowStudent, longest: int, conditions: Conditions):
        calls = [function_of(call, student.specs) for call in student.calls]
        super().__init__(student, longest, student.initial_state(1), calls, conditions)

    def noise(self, source: NoiseSource, samples: int) -> tf.Tensor:
        """See `StreamingModel.noise`."""
        return self._model.noise(source.key[0], source.row, samples, source.start[0])

    def draw_next(
        self, temperature: tf.Tensor, noise: tf.Tensor, channels: Maybe, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """See `StreamingRows.draw_next`."""
        values, after = self._model.step(temperature * noise, state, channels)
        return self._model.elements(values), after


def density_functions(
    model: Autoregressive, conditions: Conditions, channels: int | None, length: int | None
) -> dict[str, Function]:
    """Return `log_prob`, and `call`, which returns the parameters of every element's distribution.

    Sequences have no `channels`, and `length` if it is the only one.
    """
    axes = (None, length) if channels is None else (None, None, None, channels)
    low, high = element_range(model)
    inputs = {"elements": TensorInfo(element_type(model), axes, low, high)}
    inputs |= conditions.infos([length] if channels is None else [None, None])
    # A distribution over whole pixels has one value per pixel, any other one per element.
    by_pixel = channels is not None and pixel_channels(model.distribution) is not None
    nats = TensorInfo(FLOAT32, axes[:-1] if by_pixel else axes)

    def log_prob(given: Tensors) -> Tensors:
        found = model.log_prob(given["elements"], conditions.of(given))
        return {"log_prob": tf.cast(found, tf.float32)}

    def call(given: Tensors) -> Tensors:
        return {"parameters": model.conditionals(given["elements"], conditions.of(given))}

    density = Function(log_prob, Signature(inputs, {"log_prob": nats}))
    return {CALL: Function(call, Signature(inputs, {})), "log_prob": density}


def element_type(model: Any) -> np.dtype:
    """Return int32 or float32, the type of a model's elements."""
    zero = model.codec.decode(tf.zeros([], tf.float32 if model.codec.levels is None else tf.int32))
    return INT32 if tf.as_dtype(zero.dtype).is_integer else FLOAT32


def elements_of(model: Any) -> dict[str, Any]:
    """Return the entry of model.json for a model's elements: their type and number of levels."""
    return {"dtype": element_type(model).name, "levels": model.codec.levels}


def element_range(model: Any) -> tuple[float | None, float | None]:
    """Return the lowest and highest element allowed, with margins for floats, or two Nones."""
    levels = model.codec.levels
    if levels is None:
        return None, None
    with tf.init_scope():  # this may be called while tracing
        ends = [float(model.codec.decode(tf.constant(end))) for end in (0, levels - 1)]
    low, high = sorted(ends)
    # Real-valued elements may leave the range by rounding.
    slack = 0.0 if element_type(model) == INT32 else 1e-6 * (high - low)
    return low - slack, high + slack
