"""`functions` returns any model as pure functions of tensors by name.

Conditions of users' models are inputs. Sequences whose network has a step are generated piece by
piece, like sound (`sequence_functions`). Images, and other sequences, have one shape and are drawn
by passes over the whole array. `log_prob` returns the log probability of every element. A network
that computes something else when traced for any length (Keras' `TimeDistributed`) runs on rows
padded to one of a few lengths; since it is causal, the padding changes nothing before it.

Other functions take the options of `Draw`, such as a prompt: `prompted` generates whole rows, and
`prompted_chunk` the next segment of rows whose state the client keeps. A model has the inputs of
those options that suit it. Each row is generated separately, by two kinds of functions that XLA
compiles for one row and fixed lengths: passes that read the symbols of a prompt, and a loop that
draws symbols up to the row's end.
"""

import copy
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.bundles.function import (
    FLOAT32,
    INT32,
    UINT8,
    Function,
    Functions,
    Tensors,
    by_rows,
    drawing_functions,
    name_variables,
    noise_infos,
)
from onepass.bundles.sequence_functions import (
    ANY_BATCHES,
    MAX_TEMPERATURE,
    Conditioning,
    Maybe,
    NoiseSource,
    Size,
    State,
    StateSpecs,
    StreamingRows,
    Window,
    default_buckets,
    each_alone,
    fit_time,
    noise_source,
    sequence_functions,
    state_infos,
    states_among,
    steps_at,
)
from onepass.bundles.signature import PLAIN, STATE, V2_NAMES, WHOLE, Signature, TensorInfo, input_of
from onepass.foundation.rules import UserError, check_draw_length, integer
from onepass.interface import OPTIONS, Facts, choice_of, prompt_inputs
from onepass.likelihoods.distribution import Distribution, pixel_channels, table_of, tempers
from onepass.likelihoods.truncated import Choice, Truncated
from onepass.model import Autoregressive
from onepass.networks.conditions import (
    Condition,
    Frames,
    Specs,
    as_specs,
    given_once,
    is_at_rate,
    plain,
    resize_spec,
)
from onepass.networks.conditions import first_state as state_before
from onepass.networks.elements import filler
from onepass.networks.symbols import NO_STOP, Prompt
from onepass.samplers import cached_chunk
from onepass.samplers.fixed_point import fixed_point
from onepass.samplers.sampling import Samplers
from onepass.samplers.sequential import sample_cached
from onepass.step import NotCausalError, UnsupportedNetworkError
from onepass.storage.models import (
    LENGTHS,
    assigning_nothing,
    first_fault,
    function_of,
    network_specs,
)

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

    `is_frames` if the only condition has one row of floats per element of a sequence, so that its
    input is `frames`. A condition `at_frame_rate`, with a row for every few time steps, is given
    for whole sequences, whose length is fixed.
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
        self.at_frame_rate = any(isinstance(spec, Frames) for spec in specs.values())

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

    def select_timed(self, given: Tensors) -> Tensors:
        """Return, by condition name, the conditions that have a time axis, as the model reads."""
        timed = self._timed.items()
        return {name: tf.cast(given[self.names[name]], spec.dtype) for name, spec in timed}

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

    hop_samples, side_frames, feature_channels, speakers, channels = 1, 0, 0, 0, 0
    clips = False

    def __init__(
        self, model: Any, longest: int, first: Any, networks: list[Any], conditions: Conditions
    ):
        super().__init__(first)
        self.variables = name_variables(each.get_concrete_function() for each in networks)
        self._model, self._longest = model, longest
        self.conditions = conditions
        self.output = "elements" if model.sample_rate_hz is None else "sound"
        short = min(PIECES[0], longest)
        self.pieces: tuple[int, int] = (short, max(short, min(PIECES[1], longest) // short * short))

    def condition_infos(self, samples: int | None) -> dict[str, TensorInfo]:
        """See `StreamingModel.condition_infos`."""
        return self.conditions.infos([samples])

    def conditions_of_rows(
        self, given: Tensors, window: Window | None, samples: Size, phase: Maybe
    ) -> Conditioning:
        """Return the conditions of the elements of a segment, by name."""
        del phase
        first = 0 if window is None else window.low[0]
        timed = self.conditions.select_timed(given).items()
        return Conditioning({name: fit_time(x[:, first:], samples) for name, x in timed})


class StreamingAutoregressive(StreamingSequence):
    """The streaming form of an `Autoregressive`, which draws one element after another."""

    def __init__(self, model: Autoregressive, longest: int, conditions: Conditions):
        network = model.symbol_network
        call = function_of(network.call, network_specs(model))
        first = state_before(network, 1, longest, Condition({}, conditions.zeros()))
        super().__init__(model, longest, first, [call], conditions)
        self.tempers = tempers(model.distribution)

    def first(self, given: Tensors) -> Any:
        """See `StreamingRows.first`."""
        fixed = self.conditions.select_fixed(given)
        if not fixed:
            return super().first(given)
        network = self._model.symbol_network
        return state_before(network, 1, self._longest, Condition({}, fixed))

    def noise(self, source: NoiseSource, samples: int) -> tf.Tensor:
        """See `StreamingModel.noise`."""
        row = tf.ensure_shape(source.row, [1])
        return self._model.distribution.noise(source.key[0], row, source.start[0], samples)

    def draw_next(
        self, temperature: tf.Tensor, noise: tf.Tensor, channels: Any, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """See `StreamingRows.draw_next`."""
        model, condition = self._model, Condition(channels, {})
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
        self, temperature: tf.Tensor, noise: tf.Tensor, channels: Any, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """See `StreamingRows.draw_next`."""
        condition = next(iter(channels.values()), None)
        values, after = self._model.step(temperature * noise, state, condition)
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
    return INT32 if filler(model.codec).dtype.kind in "iu" else FLOAT32


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


PADDED = (256, 1024, 4096, 16_384, 65_536)  # sequences with a condition are padded to one of these
Length = int | Sequence[int] | None


def functions(model: Any, **options: Any) -> Functions:
    """Return the functions of a model with its current weights; raise UserError if it has none.

    `batches` and `buckets` are options for a `Trained` of sound or images, `length` and `entries`
    for an `Autoregressive` or a `FlowStudent`.
    """
    makes = getattr(model, "makes", None)
    if makes is not None:
        # Heavy imports, of what users' models do without.
        from onepass.bundles.trained_functions import image_functions, sound_functions

        return (sound_functions if makes == "sound" else image_functions)(model, **options)
    return _of_own(model, **options)


def _of_own(model: Any, *, length: Length = None, entries: Entries = None) -> Functions:
    model.follow(by_trace=True)
    layout = getattr(model, "layout", None)
    if layout is not None and layout.rank == 3:
        raise UserError(
            f"`model` must have one channel per time to be exported, got {layout.channels};"
            " `onepass.save` stores it."
        )
    conditions = Conditions(model, entries)
    if model.order == "raster":
        if length is None:  # the default of a network of one size
            network = model.symbol_network
            sizes = getattr(network, "declared", network.inputs).shape[1:].as_list()
            length = None if None in sizes else sizes
        shape = check_draw_length(length, "raster")
        found = _of_shape(assigning_nothing(model), shape, conditions)
    else:
        longest = None if length is None else check_draw_length(length, "time")[0]
        found = _of_sequences(assigning_nothing(model), longest, conditions)
    # Sound is served piece by piece, and frames are read all at once.
    is_sound = model.sample_rate_hz is not None and not conditions.at_frame_rate
    found.conditions = conditions
    found.spec = {
        "kind": model.kind,
        "makes": "sound" if is_sound else "array",
        "order": model.order,
        "condition": "frames" if conditions.is_frames else "none",
        **({"conditions": conditions.names} if conditions.names else {}),
        "codec": type(model.codec).__name__,
        "distribution": type(getattr(model, "distribution", model)).__name__,
        "elements": elements_of(model),
        **({"sample_rate_hz": model.sample_rate_hz} if is_sound else {}),
        **found.spec,
    }
    return found


def _of_sequences(model: Any, length: int | None, conditions: Conditions) -> Functions:
    if conditions.at_frame_rate:
        if length is None:
            raise UserError("The model reads frames, so that `length` must be given.")
        return _of_shape(pad_log_prob(model, [length]), (length,), conditions)
    lengths = _lengths(model.sample_rate_hz, length)
    draws_elements = model.kind == Autoregressive.kind
    for each in lengths if draws_elements else ():
        model.check_length((each,))  # the shortest first, as it is the cheapest to check
    make = StreamingAutoregressive if draws_elements else StreamingFlows
    try:
        streaming = make(model, lengths[-1], conditions)
    except (NotCausalError, UnsupportedNetworkError) as error:
        if not draws_elements or model.sample_rate_hz is not None:
            raise UserError(f"The model cannot be exported: it has no step: {error}") from error
        if length is None:
            raise UserError(
                f"The network has no step, so that `length` must be given: {error}"
            ) from error
        return _of_shape(pad_log_prob(model, [length]), (length,), conditions)
    found = sequence_functions(streaming, lengths)
    if draws_elements:
        padded = pad_log_prob(model, lengths)
        density = density_functions(padded, conditions, None, None)
        found.calls["log_prob"] = density["log_prob"]
        _add_prompts(found, padded, streaming)
        drawing = found.fixed

        def fixed(rows: int, length: int | None) -> dict[str, Function]:
            size = min(length or PIECES[0], lengths[-1])
            given = {name: each.fixed(rows, [size]) for name, each in density.items()}
            return drawing(rows, size) | given

        found.fixed = fixed
    found.spec["max_length"] = lengths[-1]
    return found


def _lengths(sample_rate_hz: int | None, length: int | None) -> list[int]:
    usual = PADDED if sample_rate_hz is None else default_buckets(sample_rate_hz, 1)
    longest = usual[-1] if length is None else length
    return [each for each in usual if each < longest] + [longest]


COUNTS = "counts"  # of earlier symbols, in the state
PASSES = (256, 16)  # symbols of a prompt that one pass reads; the rest take one step each


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A distribution over tokens that draws as `Truncated` if a row requests it."""

    distribution: Distribution

    @property
    def levels(self) -> int | None:
        """Number of symbols."""
        return self.distribution.levels

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Choice) -> tf.Tensor:
        """Return symbols of one row, int32 [...], from the truncated distribution if requested."""

        def draw(distribution: Any, heat: Any) -> tf.Tensor:
            drawn = distribution.sample(parameters, noise, heat)
            return tf.ensure_shape(tf.cast(drawn, tf.int32), noise.shape[:-1])

        # Finding the most probable tokens takes longer than drawing one.
        return tf.cond(
            temperature.differs,
            lambda: draw(Truncated(self.distribution), temperature),
            lambda: draw(self.distribution, temperature.temperature),
        )


def _restrict_tokens(distribution: Distribution) -> Any:
    return distribution if table_of(distribution) is None else Chosen(distribution)


class Part(NamedTuple):
    """A request for symbols of one row, starting at a position, at which noise and prompt start."""

    source: NoiseSource
    heat: Any  # the temperature, or the `Choice` among tokens that includes it
    prompt: Prompt  # symbols [1, at least `count`]
    count: tf.Tensor  # int32 [], number of symbols to return, including the prefix
    conditions: Tensors  # by name, [1, time, ...]


class Rows:
    """Generator of rows of a model with a step, from a prompt."""

    def __init__(self, streaming: StreamingSequence, model: Autoregressive):
        self._streaming, self._network = streaming, model.symbol_network
        self._samplers = Samplers(model)
        distribution = model.distribution
        self._distribution = _restrict_tokens(distribution)
        self.longest_loop = streaming.pieces[1]
        counts = {COUNTS: tf.TensorSpec([distribution.levels or 0], tf.int32)}
        self.memory: StateSpecs = {} if table_of(distribution) is None else counts
        self._draw = tf.function(self._draw_symbols, jit_compile=True, autograph=False)
        self._read = tf.function(self._after, jit_compile=True, autograph=False)
        sizes = PASSES if self._network.block == 1 else ()
        self._sizes = [size for size in sizes if size < self.longest_loop]

    def make_symbols(self, part: Part, state: State) -> tuple[tf.Tensor, tf.Tensor, State]:
        """Return the symbols [1, count], whether the row has ended, bool [], and the new state."""
        begun, state = self._read_prefix(part, state)
        # The loop may draw beyond `count`: XLA compiles pieces of one size, which are cut
        # afterwards.
        shapes = (tf.TensorShape([1, None]), tf.TensorShape([]))
        symbols, ended, state = tf.while_loop(
            lambda symbols, ended, _: (tf.shape(symbols)[1] < part.count) & ~ended,
            lambda symbols, _, state: self._longer(part, symbols, state),
            (begun, tf.constant(False), state),
            shape_invariants=(*shapes, {name: value.shape for name, value in state.items()}),
            parallel_iterations=1,
        )
        symbols = symbols[:, : part.count]
        missing = part.count - tf.shape(symbols)[1]
        return part.prompt.fill_ended(tf.pad(symbols, [[0, 0], [0, missing]])), ended, state

    def _read_prefix(self, part: Part, state: State) -> tuple[tf.Tensor, State]:
        """Read as much of the prefix as passes can; return what was read and the state after it."""
        position, readable = tf.constant(0), tf.minimum(part.prompt.known[0], part.count)
        for size in self._sizes:

            def body(position: tf.Tensor, state: State, size: int = size) -> tuple:
                return position + size, self._read(_window(part, position, size), state)

            position, state = tf.while_loop(
                lambda position, _, size=size: position + size <= readable,
                body,
                (position, state),
                parallel_iterations=1,
            )
        return part.prompt.symbols[:, :position], state

    def _after(self, part: Part, state: State) -> State:
        condition = Condition(part.conditions, {})
        before = self._unpack_state(state)
        return self._pack_state(self._samplers.read(part.prompt.symbols, condition, before))

    def _unpack_state(self, state: State) -> Any:
        return self._streaming.unpack_state(state) | {name: state[name] for name in self.memory}

    def _pack_state(self, state: Any) -> State:
        own = {name: value for name, value in state.items() if name not in self.memory}
        return {**self._streaming.pack_state(own), **{name: state[name] for name in self.memory}}

    def _longer(
        self, part: Part, begun: tf.Tensor, state: State
    ) -> tuple[tf.Tensor, tf.Tensor, State]:
        position, size = tf.shape(begun)[1], self.longest_loop
        cut = _window(part, position, size)
        new, state = self._draw(cut, state)
        is_end = cut.prompt.ends(new) & (tf.range(size) < cut.count)
        return tf.concat([begun, new], 1), tf.reduce_any(is_end), state

    def _draw_symbols(self, part: Part, state: State) -> tuple[tf.Tensor, State]:
        size = self.longest_loop
        new, after = cached_chunk(
            self._network,
            self._distribution,
            self._streaming.noise(part.source, size),
            Condition(part.conditions, {}),
            part.heat,
            self._unpack_state(state),
            part.prompt,
            tf.minimum(part.count, size),
        )
        return tf.ensure_shape(new, [1, size]), self._pack_state(after)


def _window(part: Part, position: tf.Tensor, size: int) -> Part:
    prompt = part.prompt.after(position, size)
    prompt = prompt._replace(
        symbols=tf.ensure_shape(prompt.symbols, [1, size]),
        known=tf.ensure_shape(tf.minimum(prompt.known, size), [1]),
    )
    return part._replace(
        source=part.source.after(position),
        prompt=prompt,
        count=part.count - position,
        conditions=steps_at(part.conditions, position, size),
    )


FLAG = TensorInfo(INT32, (None,), 0, 1, 0)


def _add_prompts(found: Functions, model: Autoregressive, streaming: StreamingSequence) -> None:
    """Add the calls `prompted` and `prompted_chunk` of a model with a step."""
    base = found.calls["compiled"].signature
    prompt = base.inputs | _prompt_infos(model, found.serving["buckets"][-1])
    rows = Rows(streaming, model)
    state, returned = state_infos(streaming.state() | rows.memory)
    start = {"start": TensorInfo(INT32, (None,), low=0, default=0)}
    nats, flags = TensorInfo(FLOAT32, (None, None)), TensorInfo(INT32, (None,))
    whole = Signature({**prompt, "return_log_prob": FLAG}, {**base.outputs, "log_prob": nats})
    chunk = Signature({**prompt, **start, **state}, {**base.outputs, "ended": flags, **returned})
    for name, signature in (("prompted", whole), ("prompted_chunk", chunk)):
        made = _of_steps(rows, streaming, model, signature)
        found.calls[name] = Function(made, signature, states_among(signature))


def _of_shape(model: Autoregressive, shape: tuple[int, ...], conditions: Conditions) -> Functions:
    """Return the functions that generate whole rows, for a model whose arrays have one shape.

    For an 8-bit image, the output's name and the shape of the temperature are as for an image
    model. A model in raster order that is not over tokens takes no prompt.
    """
    in_time, (size, *sides) = model.order == "time", shape
    is_level = model.codec.levels == 256 and element_type(model) == np.int32
    is_byte_image = is_level and sides in ([size, 1], [size, 3])
    output = "picture" if is_byte_image else "elements"
    info = TensorInfo(UINT8 if is_byte_image else element_type(model), (None, *shape))
    heat = (None, 1) if is_byte_image else (None,)
    coldest, hottest = (0.0, MAX_TEMPERATURE) if tempers(model.distribution) else (1.0, 1.0)
    sizes = shape[:1] if in_time else shape[:2]
    inputs = noise_infos(heat, coldest, hottest) | conditions.infos(sizes)
    channels, only = None if in_time else shape[2], size if conditions.at_frame_rate else None
    density = density_functions(model, conditions, channels, only)
    whole = Signature(inputs, {output: info})
    calls = {n: _of_passes(model, shape, whole, conditions, n != PLAIN) for n in WHOLE}
    found = drawing_functions(calls, ANY_BATCHES, density, sizes)
    found.calls["log_prob"] = density["log_prob"]
    if in_time or table_of(model.distribution) is not None:
        prompt = inputs | _prompt_infos(model, shape[0] if in_time else 0)
        nats = TensorInfo(FLOAT32, (None, *shape))
        prompted = Signature({**prompt, "return_log_prob": FLAG}, {output: info, "log_prob": nats})
        found.calls["prompted"] = _of_passes(model, shape, prompted, conditions)
    if is_byte_image:
        found.spec = {"makes": "picture", "size": size, "channels": channels, "classes": []}
    if conditions.at_frame_rate:
        network = function_of(model.symbol_network.call, network_specs(model))
        found.variables = name_variables([network.get_concrete_function()])
    return found


def _prompt_infos(model: Autoregressive, longest: int) -> dict[str, TensorInfo]:
    """Return the inputs of a prompt."""
    in_time, of_tokens = model.order == "time", table_of(model.distribution) is not None
    (low, high), dtype = element_range(model), element_type(model).name
    facts = Facts(in_time, of_tokens, model.codec.levels, dtype, low, high, longest)
    options = prompt_inputs(facts).items()
    return {n: TensorInfo(np.dtype(x.dtype), x.shape, x.low, x.high, x.default) for n, x in options}


def _encode(model: Autoregressive) -> Callable[..., tf.Tensor]:
    return lambda elements, name: tf.cast(model.codec.encode(elements), tf.int32)


def _prompt(model: Autoregressive, given: Tensors, symbols: tf.Tensor) -> Prompt:
    stop = tf.constant(NO_STOP)
    if "stop" in given:
        stop = OPTIONS["stop"].tensor_of(given, "stop", _encode(model), model.codec.levels or 0)
    return Prompt(symbols, given["num_prefix"], stop)


def _log_prob(
    model: Autoregressive,
    conditions: Conditions,
    elements: Any,
    prompt: Prompt | None,
    given: Tensors,
) -> tf.Tensor:
    """Return log probabilities of a row, 0 after the element that ends it or if not requested."""
    symbols = model.codec.encode(elements)

    def find_log_prob() -> tf.Tensor:
        length = tf.shape(elements)[1] if model.order == "time" else None
        nats = tf.cast(model.log_prob(elements, conditions.of(given, length)), tf.float32)
        return nats if prompt is None else tf.where(prompt.find_ended(symbols), 0.0, nats)

    def nothing() -> tf.Tensor:
        return tf.zeros(tf.shape(elements), tf.float32)

    return tf.cond(given["return_log_prob"][0] > 0, find_log_prob, nothing)


def _of_steps(
    rows: Rows, streaming: StreamingSequence, model: Autoregressive, signature: Signature
) -> Callable[[Tensors], Tensors]:
    is_chunk = "ended" in signature.outputs

    def row(given: Tensors) -> Tensors:
        start = given["start"] if is_chunk else tf.zeros_like(given["row"])
        counts = _counts(given)
        count = counts[0]
        # Padded, because the loop reads whole pieces, up to one piece beyond the last symbol.
        read, timed = count + rows.longest_loop, streaming.conditions.select_timed(given)
        known = model.codec.encode(given["prefix"][:, :count])
        part = Part(
            noise_source(given, start),
            choice_of(given, _encode(model), model.codec.levels or 0),
            _prompt(model, given, fit_time(known, read)),
            count,
            {name: fit_time(x, read) for name, x in timed.items()},
        )
        memory = {
            name: tf.where(start[0] == 0, 0, given[f"{STATE}{name}"])
            if is_chunk
            else tf.zeros([1, *x.shape], x.dtype)
            for name, x in rows.memory.items()
        }
        symbols, ended, after = rows.make_symbols(part, streaming.begin_rows(given) | memory)
        elements = tf.cast(model.codec.decode(symbols), element_type(model))
        outputs = {streaming.output: tf.cast(elements, tf.float32), "num_samples": counts}
        if is_chunk:
            stored = {f"{STATE}{name}": value for name, value in after.items()}
            return {**outputs, "ended": tf.cast(ended, tf.int32)[tf.newaxis], **stored}
        nats = _log_prob(model, streaming.conditions, elements, part.prompt, given)
        return {**outputs, "log_prob": nats}

    return each_alone(signature, 1, row)


def _counts(given: Tensors) -> tf.Tensor:
    if "frames" not in given:
        return given["num_samples"]
    return tf.minimum(given["num_frames"], tf.shape(given["frames"])[1])


def _of_passes(
    model: Autoregressive,
    shape: tuple[int, ...],
    signature: Signature,
    conditions: Conditions,
    is_compiled: bool = True,
) -> Function:
    (output,) = signature.outputs.keys() - {"log_prob"}
    scores = "log_prob" in signature.outputs
    network: Any = model.symbol_network
    draws = _restrict_tokens(model.distribution) if scores else model.distribution
    positions = shape[:2] if pixel_channels(model.distribution) else shape

    @tf.function(autograph=False, jit_compile=is_compiled)
    def drawn(key: tf.Tensor, row: tf.Tensor, heat: Any, condition: Any, prompt: Any) -> tf.Tensor:
        noise = model.distribution.noise(key, row, 0, math.prod(positions))
        noise = tf.reshape(noise, [1, *positions, noise.shape[-1]])
        condition = given_once(network, condition, model.order, (1, *shape))
        if conditions.at_frame_rate and network.has_step:
            return sample_cached(network, draws, noise, condition, heat, prompt)
        return fixed_point(network, draws, noise, condition, heat, prompt).symbols

    def row(given: Tensors) -> Tensors:
        source = noise_source(given, tf.zeros_like(given["row"]))
        prompt = None
        if "prefix" in given:
            known = fit_time(model.codec.encode(given["prefix"]), shape[0])
            prompt = _prompt(model, given, tf.ensure_shape(known, [1, shape[0]]))
        row = tf.ensure_shape(given["row"], [1])
        heat = choice_of(given, _encode(model), model.codec.levels or 0)
        symbols = drawn(source.key[0], row, heat, conditions.of(given), prompt)
        symbols = tf.ensure_shape(symbols, [1, *shape])
        if prompt is not None:
            symbols = prompt.fill_ended(symbols)
        elements = model.codec.decode(symbols)
        made = {output: tf.cast(elements[0], signature.outputs[output].dtype)}
        if scores:
            made["log_prob"] = _log_prob(model, conditions, elements, prompt, given)[0]
        known = signature.outputs.items()
        return {name: tf.ensure_shape(made[name], info.shape[1:]) for name, info in known}

    return Function(by_rows(signature, row), signature)
