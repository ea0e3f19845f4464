"""`functions` returns any model as pure functions of tensors by name.

A user's model has functions that take the options of `Draw`, such as a prompt. `prompted` generates
whole rows, and `prompted_chunk` the next segment of rows whose state the client keeps. A model has
the inputs of those options that suit it. Each row is generated separately, by two kinds of
functions that XLA compiles for one row and fixed lengths: passes that read the symbols of a prompt,
and a loop that draws symbols up to the row's end. Arrays of one shape are drawn by passes, with and
without options.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

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
from onepass.bundles.image_functions import BATCHES, image_functions
from onepass.bundles.own_functions import (
    PIECES,
    Conditions,
    Entries,
    StreamingAutoregressive,
    StreamingFlows,
    StreamingSequence,
    density_functions,
    element_range,
    element_type,
    elements_of,
    pad_log_prob,
)
from onepass.bundles.sequence_functions import (
    MAX_TEMPERATURE,
    NoiseSource,
    State,
    StateSpecs,
    default_buckets,
    first_state,
    noise_source,
    sequence_functions,
    state_infos,
    states_among,
)
from onepass.bundles.signature import PLAIN, STATE, WHOLE, Signature, TensorInfo
from onepass.bundles.sound_functions import sound_functions
from onepass.foundation.rules import UserError, check_draw_length
from onepass.interface import OPTIONS, Facts, choice_of, prompt_inputs
from onepass.likelihoods.distribution import Distribution, pixel_channels, table_of, tempers
from onepass.likelihoods.truncated import Choice, Truncated
from onepass.model import Autoregressive
from onepass.networks.conditions import given_once
from onepass.networks.symbols import NO_STOP, Prompt
from onepass.samplers import cached_chunk
from onepass.samplers.fixed_point import fixed_point
from onepass.samplers.sampling import Samplers
from onepass.samplers.sequential import sample_cached
from onepass.step import NotCausalError, UnsupportedNetworkError
from onepass.storage.save import assigning_nothing, function_of, network_specs

PADDED = (256, 1024, 4096, 16_384, 65_536)  # sequences with a condition are padded to one of these
Length = int | Sequence[int] | None


def functions(model: Any, **options: Any) -> Functions:
    """Return the functions of a model with its current weights; raise UserError if it has none.

    `batches` and `buckets` are options for a `Trained` of sound or images, `length` and `entries`
    for an `Autoregressive` or a `FlowStudent`.
    """
    makes = getattr(model, "makes", None)
    if makes == "sound":
        return sound_functions(model, **options)
    if makes == "images":
        return image_functions(model, **options)
    return _of_own(model, **options)


def _of_own(
    model: Any, *, length: Length = None, entries: Entries = None, batches: Sequence[int] = ()
) -> Functions:
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
    found.batches = sorted(set(batches)) or found.batches
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


@dataclasses.dataclass(frozen=True)
class Bounded:
    """A prompt for a row that ends after at most `count` symbols, int32 []."""

    prompt: Prompt
    count: tf.Tensor

    def over(self, drawn: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """See `Prompt.over`."""
        return self.prompt.over(drawn, position)

    def ends(self, drawn: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """See `Prompt.ends`."""
        return self.prompt.ends(drawn, position) | (position + 1 >= self.count)


class Part(NamedTuple):
    """A request for symbols of one row, starting at a position, at which noise and prompt start."""

    source: NoiseSource
    heat: Any  # the temperature, or the `Choice` among tokens that includes it
    prompt: Prompt  # symbols [1, at least `count`]
    count: tf.Tensor  # int32 [], number of symbols to return, including the prefix
    channels: Any  # the condition, [1, time, channels], or None


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
        condition = self._streaming.conditions.split_frames(part.channels)
        before = self._unpack_state(part.source.start, state)
        return self._pack_state(self._samplers.read(part.prompt.symbols, condition, before))

    def _unpack_state(self, start: tf.Tensor, state: State) -> Any:
        before = self._streaming.unpack_state(start, state)
        counts = {n: tf.where(start[0] == 0, 0, state[n]) for n in self.memory}
        return {**before, **counts}

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
        size, bounded = self.longest_loop, Bounded(part.prompt, part.count)
        new, after = cached_chunk(
            self._network,
            self._distribution,
            self._streaming.noise(part.source, size),
            self._streaming.conditions.split_frames(part.channels),
            part.heat,
            self._unpack_state(part.source.start, state),
            bounded,  # type: ignore[arg-type]  # a prompt that ends earlier
        )
        return tf.ensure_shape(new, [1, size]), self._pack_state(after)


def _window(part: Part, position: tf.Tensor, size: int) -> Part:
    prompt = part.prompt.after(position, size)
    prompt = prompt._replace(
        symbols=tf.ensure_shape(prompt.symbols, [1, size]),
        known=tf.ensure_shape(tf.minimum(prompt.known, size), [1]),
    )
    channels = part.channels
    if channels is not None:
        channels = channels[:, position : position + size]
        channels = tf.ensure_shape(channels, [1, size, channels.shape[-1]])
    source, count = part.source.after(position), part.count - position
    return part._replace(source=source, prompt=prompt, count=count, channels=channels)


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
    found = drawing_functions(calls, BATCHES, density, sizes)
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
    states = {name: f"{STATE}{name}" for name in streaming.state()}
    is_chunk = "ended" in signature.outputs

    def row(given: Tensors, longest: tf.Tensor) -> Tensors:
        start = given["start"] if is_chunk else tf.zeros_like(given["row"])
        count = _counts(given)[0]
        # Padded, because the loop reads whole pieces, up to one piece beyond the last symbol.
        known = model.codec.encode(given["prefix"][:, :count])
        part = Part(
            noise_source(given, start),
            choice_of(given, _encode(model), model.codec.levels or 0),
            _prompt(model, given, _pad_values(known, count + rows.longest_loop)),
            count,
            _pad_values(given.get("frames"), count + rows.longest_loop),
        )
        state = {name: given[key] for name, key in states.items()} if is_chunk else None
        first = streaming.begin_rows(given, state or first_state(streaming, 1))
        for name, spec in rows.memory.items():
            zeros = tf.zeros([1, *spec.shape], spec.dtype)
            first[name] = given[f"{STATE}{name}"] if is_chunk else zeros
        symbols, ended, after = rows.make_symbols(part, first)
        elements = tf.cast(model.codec.decode(symbols), element_type(model))
        made = _pad_values(tf.cast(elements, tf.float32), longest)[0]
        outputs = {streaming.output: made, "num_samples": count}
        if is_chunk:
            stored = {f"{STATE}{name}": value[0] for name, value in after.items()}
            return {**outputs, "ended": tf.cast(ended, tf.int32), **stored}
        nats = _log_prob(model, streaming.conditions, elements, part.prompt, given)
        return {**outputs, "log_prob": _pad_values(nats, longest)[0]}

    def make_rows(given: Tensors) -> Tensors:
        given = streaming.join_frames(given)
        counts = _counts(given)
        longest = tf.shape(given["frames"])[1] if "frames" in given else tf.reduce_max(counts)
        return by_rows(signature, lambda one: row(one, longest))(given)

    return make_rows


def _counts(given: Tensors) -> tf.Tensor:
    if "frames" not in given:
        return given["num_samples"]
    return tf.minimum(given["num_frames"], tf.shape(given["frames"])[1])


def _pad_values(values: Any, length: Any) -> Any:
    if values is None:
        return None
    cut = values[:, :length]
    sides = [[0, 0], [0, length - tf.shape(cut)[1]]] + [[0, 0]] * (values.shape.rank - 2)
    return tf.pad(cut, sides)


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
            known = _pad_values(model.codec.encode(given["prefix"]), shape[0])
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
