"""The functions of a model that continues from a state: of sound, and of users' sequences.

A `StreamingModel` is what a kind of model says of itself: its noise, its condition, and a step of
many elements from a state of tensors [batch, ...], with independent rows. From it are made

- `serving_default` and `compiled`, which generate whole rows, the latter piece by piece: XLA
  compiles pieces of only two lengths, which serve for rows of any length;
- `chunk`, which runs the same pieces for clients that keep the state: it generates the next segment
  of each row, which starts at any position;
- `noise`, `condition`, `step` and `draw` of one size.

The conditioning of a row depends on where its frames end, because the last frames are repeated
beyond the end. Rows of different lengths are therefore not padded before that step: each row's
conditioning is computed separately, outside XLA, and then padded with zeros to the longest row's.
Generation from it is causal, so nothing after a row's end changes the row.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from onepass.bundles.function import (
    FLOAT32,
    INT32,
    Function,
    Functions,
    Make,
    Tensors,
    by_rows,
    keys_of,
    noise_infos,
)
from onepass.bundles.signature import PLAIN, STATE, WHOLE, Signature, TensorInfo
from onepass.networks.any_length import pad_time

State = dict[str, Any]
StateSpecs = dict[str, tf.TensorSpec]  # by name, without the batch axis; all begin with zeros
Maybe: TypeAlias = tf.Tensor | None
Size: TypeAlias = tf.Tensor | int  # int32 []
Advanced = tuple[tf.Tensor, State]  # new samples, and the state after them
MAX_FEATURE = 4.0  # silence is 0 and full scale about 1; filters overflow far beyond
CHANNELS = "channels"  # of the condition of every sample, what `step` reads


@dataclasses.dataclass(frozen=True)
class Conditioning:
    """The condition of a segment, and the source's phase after it, float64 [batch], or None."""

    channels: Any  # a nest of tensors, or None
    phase: Any = None


class NoiseSource(NamedTuple):
    """The numbers that determine the noise of a segment, which depends on nothing else."""

    key: Any  # uint32 [batch, 2], the high and the low 32 bits of the seed
    row: Any
    start: Any
    temperature: Any  # float32 [batch], factor of the noise, or temperature of a distribution
    drawn: Any = None  # the noise itself, if it is drawn already, without keys and rows

    def after(self, samples: Size) -> "NoiseSource":
        """Return the noise that starts `samples` samples later."""
        return self._replace(start=self.start + samples)


@dataclasses.dataclass(frozen=True)
class Window:
    """The frames that condition a segment of each row; every field is int32 [batch]."""

    low: Any
    high: Any
    skipped: Any
    samples: Any  # 0 in a row that has ended


class StreamingModel:
    """A model as pure functions that continue from a state; by default a model of speech.

    The length of every chunk of a stream but the last must be a multiple of the short piece, and
    all rows of a call of `chunk` must have equal length. A call gets as many frames before and
    after the segment as `side_frames` allows but for the ends of the sound.
    """

    variables: Mapping[str, tf.Variable]
    hop_samples: int
    feature_channels: int
    speakers: int
    side_frames: int
    pieces: tuple[int, int]  # compiled lengths in samples, of whole frames; one divides the next
    channels: int
    dtype: tf.DType
    has_phase: bool = False
    rows_alone: bool = True  # whether its functions take batches of one row
    output = "sound"
    clips: bool = True  # whether samples are clipped to full scale
    tempers: bool = True  # whether temperatures other than 1 are allowed

    def state(self) -> StateSpecs:
        """Return the spec of every tensor of the state, by name."""
        raise NotImplementedError

    def begin_rows(self, given: Tensors) -> State:
        """Return the state before the rows' next samples, by default of inputs, or of zeros."""
        if "start" in given:
            return {name: given[f"{STATE}{name}"] for name in self.state()}
        batch = tf.shape(given["temperature"])[0]
        return {name: tf.zeros([batch, *x.shape], x.dtype) for name, x in self.state().items()}

    def condition_infos(self, samples: int | None) -> dict[str, TensorInfo]:
        """Return the inputs that the condition of a number of samples is made of; None: of any."""
        count = None if samples is None else -(-samples // self.hop_samples)
        shape, found = (None, count, self.feature_channels), dict[str, TensorInfo]()
        if self.feature_channels:
            found["frames"] = TensorInfo(FLOAT32, shape, -MAX_FEATURE, MAX_FEATURE)
        if self.speakers:
            found["speaker"] = TensorInfo(INT32, (None,), 0, self.speakers - 1, 0)
        return found

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size
    ) -> Conditioning:
        """Return the condition of a segment of one sound.

        It is made of `frames` float32 [1, frames, features], `skipped` of them before the segment,
        and of the source's phase before it, float64 [1], in cycles.
        """
        raise NotImplementedError

    def conditions_of_rows(
        self, given: Tensors, window: Window | None, samples: Size, phase: Maybe
    ) -> Conditioning:
        """Return the conditioning of `samples` samples of each row, [batch, samples, ...].

        Shorter rows are padded with zeros. There is no `window` without frames, and no `phase`,
        float64 [batch] before the segment, without a source that has one.
        """
        frames, speaker = given.get("frames"), given.get("speaker")
        if frames is None or window is None:
            if not self.channels:
                return Conditioning(None)
            return self.conditioning(None, speaker, samples, None, 0)
        before: Any = phase  # not None if the model has a phase
        shapes = {"channels": tf.TensorSpec([None, self.channels], self.dtype)}
        if self.has_phase:
            shapes["phase"] = tf.TensorSpec([], tf.float64)

        def row(n: tf.Tensor) -> dict[str, tf.Tensor]:
            # A row that has ended has no frames in the segment, and so no conditioning.
            def nothing() -> dict[str, tf.Tensor]:
                empty = {"channels": tf.zeros([0, self.channels], self.dtype)}
                return {**empty, "phase": before[n]} if self.has_phase else empty

            def conditioning() -> dict[str, tf.Tensor]:
                result = self.conditioning(
                    frames[n, window.low[n] : window.high[n]][None],
                    None if speaker is None else speaker[n][None],
                    window.samples[n],
                    None if phase is None else phase[n][None],
                    window.skipped[n],
                )
                return {name: getattr(result, name)[0] for name in shapes}

            parts = tf.cond(window.samples[n] > 0, conditioning, nothing)
            missing = samples - window.samples[n]
            return {**parts, "channels": tf.pad(parts["channels"], [[0, missing], [0, 0]])}

        if self.rows_alone:
            return Conditioning(**{name: x[tf.newaxis] for name, x in row(tf.constant(0)).items()})
        rows = tf.range(tf.shape(window.samples)[0])
        return Conditioning(**tf.map_fn(row, rows, fn_output_signature=shapes))

    def noise(self, source: NoiseSource, samples: int) -> tf.Tensor:
        """Return the noise of the next samples, float32 [batch, samples, ...]."""
        raise NotImplementedError

    def advance(
        self, source: NoiseSource, noise: tf.Tensor, channels: Any, state: State
    ) -> Advanced:
        """Return the next samples, float32 [batch, samples], and the state after them."""
        raise NotImplementedError


def storable(dtype: tf.DType) -> tf.DType:
    """Return the type in which a state of a type is sent, which every protocol supports."""
    return {tf.bool: tf.int32, tf.bfloat16: tf.float32, tf.float16: tf.float32}.get(dtype, dtype)


class StreamingRows(StreamingModel):
    """A model that continues each row alone, from a structure of tensors.

    The structure is sent as tensors by number, of types that every protocol supports. At position 0
    it is the first one, whatever is sent.
    """

    def __init__(self, first: Any) -> None:
        self._structure = first
        self._first = [tf.convert_to_tensor(tensor).numpy() for tensor in tf.nest.flatten(first)]

    def state(self) -> StateSpecs:
        """Return the specs of the tensors that are not empty, which no protocol supports."""
        stored = {str(n): _as_stored(tf.constant(each)) for n, each in enumerate(self._first)}
        return {n: tf.TensorSpec(x.shape, x.dtype) for n, x in stored.items() if 0 not in x.shape}

    def first(self, given: Tensors) -> Any:
        """Return the first structure; by default it depends on no input."""
        del given
        return tf.nest.pack_sequence_as(self._structure, list(map(tf.constant, self._first)))

    def begin_rows(self, given: Tensors) -> State:
        """See `StreamingModel.begin_rows`."""
        if "start" not in given:
            return self.pack_state(self.first(given))
        is_new, sent = given["start"][0] == 0, super().begin_rows(given)
        # The first structure may take networks over conditions.
        return tf.cond(is_new, lambda: self.pack_state(self.first(given)), lambda: sent)

    def unpack_state(self, state: State) -> Any:
        """Return the structure in a state."""
        before = [
            _from_stored(state[str(n)][0], tf.as_dtype(x.dtype)) if x.size else tf.constant(x)
            for n, x in enumerate(self._first)
        ]
        return tf.nest.pack_sequence_as(self._structure, before)

    def pack_state(self, after: Any) -> State:
        """Return a structure as tensors [1, ...] by number."""
        flat = zip(tf.nest.flatten(after), self._first, strict=True)
        return {
            str(n): _as_stored(tf.ensure_shape(value, first.shape))[tf.newaxis]
            for n, (value, first) in enumerate(flat)
            if first.size
        }

    def advance(
        self, source: NoiseSource, noise: tf.Tensor, channels: Any, state: State
    ) -> Advanced:
        """Return the next elements of one row, float32 [1, samples], and the state after them."""
        before, samples = self.unpack_state(state), noise.shape[1]
        if channels is not None:
            channels = tf.nest.map_structure(
                lambda x: tf.ensure_shape(x, [1, samples, *x.shape[2:]]), channels
            )
        noise = tf.ensure_shape(noise, [1, *noise.shape[1:]])
        elements, after = self.draw_next(source.temperature[0], noise, channels, before)
        made = tf.ensure_shape(tf.cast(elements, tf.float32), [1, samples])
        return made, self.pack_state(after)

    def draw_next(
        self, temperature: tf.Tensor, noise: tf.Tensor, channels: Any, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """Return the elements [1, samples] that the noise of one row gives, and the next state."""
        raise NotImplementedError


def _as_stored(value: tf.Tensor) -> tf.Tensor:
    if value.dtype.is_complex:
        value = tf.stack([tf.math.real(value), tf.math.imag(value)], -1)
    return tf.cast(value, storable(value.dtype))


def _from_stored(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.is_complex:
        parts = tf.cast(value, dtype.real_dtype)
        return tf.complex(parts[..., 0], parts[..., 1])
    return tf.cast(value, dtype)


def whole_pieces(pieces: tuple[int, int], hop_samples: int) -> tuple[int, int]:
    """Return the pieces rounded up to whole frames, the long one a multiple of the short one."""
    short = _round_up(pieces[0], hop_samples)
    return short, _round_up(pieces[1], short)


MAX_SEGMENT_SAMPLES = 160_000  # per row, whose conditioning must fit into memory
MIN_SEGMENT_SAMPLES = 80_000
MAX_BATCH_SEGMENT_SAMPLES = 640_000  # for all rows together
Step = Callable[[NoiseSource, Any, State], tuple[Any, State]]


def _trim_to_lengths(streaming: StreamingModel, sound: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Clip samples, set those after a row's end to 0, and cut at the longest row."""
    sound = sound[:, : tf.reduce_max(lengths)]
    if streaming.clips:
        sound = tf.clip_by_value(sound, -1.0, 1.0)
    within = tf.sequence_mask(lengths, tf.shape(sound)[1])
    return tf.where(within, sound, tf.zeros_like(sound))


def _run_steps(
    steps: dict[int, Step],
    source: NoiseSource,
    conditioning: Conditioning,
    state: State,
    samples: Size,
) -> Advanced:
    """Generate the next samples, float32 [batch, samples], not clipped, and the state after them.

    Noise and conditioning begin at the first; `samples` is a multiple of the shortest piece.
    """
    sound, channels = tf.zeros([tf.shape(source.start)[0], 0]), conditioning.channels
    shapes = (tf.TensorShape([]), tf.TensorShape([None, None]), _shapes(state))
    for size, step in steps.items():

        def body(
            first: tf.Tensor, sound: tf.Tensor, state: State, size: int = size, step: Step = step
        ) -> tuple[Any, ...]:
            part = steps_at(channels, first, size)
            new, state = step(source.after(first), part, state)
            return first + size, tf.concat([sound, new], 1), state

        _, sound, state = tf.while_loop(
            lambda first, *_, size=size: first + size <= samples,
            body,
            (tf.shape(sound)[1], sound, state),
            shape_invariants=shapes,
            parallel_iterations=1,
        )
    return sound, state


def steps_at(conditions: Any, first: Size, size: int) -> Any:
    """Return `size` time steps of each tensor of a nest, which may also contain None."""

    def steps(values: Maybe) -> Maybe:
        if values is None:
            return None
        shape = [values.shape[0], size, *values.shape[2:]]
        return tf.ensure_shape(values[:, first : first + size], shape)

    return tf.nest.map_structure(steps, conditions)


def _step(streaming: StreamingModel, size: int, compiled: bool) -> Step:
    def step(source: NoiseSource, channels: Any, state: State) -> Advanced:
        noise = streaming.noise(source, size) if source.drawn is None else source.drawn
        return streaming.advance(source, noise, channels, state)

    return tf.function(step, jit_compile=True, autograph=False) if compiled else step


def fit_time(values: tf.Tensor, length: Any) -> tf.Tensor:
    """Return values [batch, time, ...] cut or padded to a number of time steps."""
    return pad_time(values[:, :length], length)


def each_alone(signature: Signature, hop_samples: int, make: Make) -> Make:
    """Return a function of batches, each row of which `make` computes in a batch of one.

    Rows are padded to the longest one, and whole rows of frames to the length of these.
    """

    def rows(given: Tensors) -> Tensors:
        longest = tf.reduce_max(given["num_frames" if "frames" in given else "num_samples"])
        if "frames" in given:
            longest = hop_samples * (longest if "start" in given else tf.shape(given["frames"])[1])

        def row(given: Tensors) -> Tensors:
            made, infos = make(given), signature.outputs.items()
            timed = {n: fit_time(made[n], longest) for n, x in infos if x.shape == (None, None)}
            return {name: value[0] for name, value in (made | timed).items()}

        return by_rows(signature, row)(given)

    return rows


def _window(
    streaming: StreamingModel, lengths: tf.Tensor, first: tf.Tensor, samples: tf.Tensor
) -> Window:
    hop = streaming.hop_samples
    frame, count = first // hop, -(-lengths // hop)
    low = tf.maximum(frame - streaming.side_frames, 0)
    requested = tf.clip_by_value(lengths - first, 0, samples)
    high = tf.minimum(frame - (-requested // hop) + streaming.side_frames, count)
    same = tf.ones_like(lengths)
    return Window(low * same, high, (frame - low) * same, requested)


def _round_up(samples: Size, unit: int) -> Any:
    return -(-samples // unit) * unit


def _shapes(state: State) -> dict[str, tf.TensorShape]:
    return {name: tf.TensorShape([None, *value.shape[1:]]) for name, value in state.items()}


PHASE = "state_turns"
BATCHES = (1, 2, 4, 8)
ANY_BATCHES = tuple(range(1, 9))  # rows cost the same in any batch, so no batch is padded
BUCKET_SECONDS = (0.5, 1, 2, 4, 8, 15, 30, 60, 120)
MAX_TEMPERATURE = 4.0
FLOAT64 = np.dtype(np.float64)


def sequence_functions(
    streaming: StreamingModel,
    lengths: Sequence[int],
    batches: Sequence[int] = (),
    temperature: float = 1.0,
) -> Functions:
    """Return the functions of a model that continues from a state.

    Rows are padded to one of `lengths`, in frames; unless `streaming.tempers`, `temperature` is the
    only one.
    """
    signatures = _signatures(streaming, lengths[-1], temperature)
    sizes = dict.fromkeys(reversed(streaming.pieces))  # longest first
    steps = {
        name: {size: _step(streaming, size, compiled=name != PLAIN) for size in sizes}
        for name in WHOLE
    }

    def function(make: Callable[..., Tensors], name: str, steps: dict[int, Step]) -> Function:
        run: Make = functools.partial(make, streaming, steps)
        if streaming.rows_alone:
            run = each_alone(signatures[name], streaming.hop_samples, run)
        return Function(run, signatures[name], states_among(signatures[name]))

    calls = {name: function(_synthesize, name, each) for name, each in steps.items()}
    calls["chunk"] = function(_chunk, "chunk", steps["compiled"])
    # The lengths, in frames, that rows are padded to, and those of the pieces in samples.
    pieces = {"pieces": list(streaming.pieces), "rows_alone": streaming.rows_alone}
    return Functions(
        calls,
        fixed=functools.partial(_of_size, streaming, signatures["chunk"]),
        batches=sorted(set(batches)) or (ANY_BATCHES if streaming.rows_alone else BATCHES),
        serving={"buckets": list(lengths), "streaming": pieces},
        spec={"unit_samples": streaming.pieces[0]},
        variables=streaming.variables,
    )


def _of_size(
    streaming: StreamingModel, chunk: Signature, rows: int, length: int | None
) -> dict[str, Function]:
    """Return `noise`, `condition`, `step` and `draw` for `length` samples, in whole frames."""
    samples = _round_up(length or streaming.pieces[0], streaming.hop_samples)
    noise = {n: info for n, info in chunk.inputs.items() if n in noise_infos()}
    start = {"start": chunk.inputs["start"]}
    temperature = {"temperature": noise.pop("temperature")}
    state = {name: info for name, info in chunk.inputs.items() if name.startswith(STATE)}
    state.pop(PHASE, None)
    condition = streaming.condition_infos(samples)
    step, batch = _step(streaming, samples, compiled=False), 1 if streaming.rows_alone else rows

    def start_of(given: Tensors) -> tf.Tensor:
        return given.get("start", tf.zeros([batch], tf.int32))

    def draw_noise(given: Tensors) -> Tensors:
        source = NoiseSource(keys_of(given["seed"]), given["row"], start_of(given), None)
        return {"noise": streaming.noise(source, samples)}

    def find_condition(given: Tensors) -> Tensors:
        frames, speaker = given.get("frames"), given.get("speaker")
        made = streaming.conditioning(frames, speaker, samples, None, 0).channels
        return {CHANNELS: tf.ensure_shape(made, [batch, samples, streaming.channels])}

    def advance(given: Tensors) -> Tensors:
        source = NoiseSource(None, None, start_of(given), given["temperature"], given["noise"])
        channels = given.get(CHANNELS)
        if not streaming.channels:
            channels = streaming.conditions_of_rows(given, None, samples, None).channels
        made, after = step(source, channels, streaming.begin_rows(given))
        if streaming.clips:
            made = tf.clip_by_value(made, -1.0, 1.0)
        return {streaming.output: made, **{f"{STATE}{n}": value for n, value in after.items()}}

    def draw(given: Tensors) -> Tensors:
        given = {**given, **draw_noise(given)}
        given |= find_condition(given) if streaming.channels else {}
        return {streaming.output: advance(given)[streaming.output]}

    def of(fn: Callable[[Tensors], Tensors], *inputs: dict[str, TensorInfo]) -> Function:
        signature = Signature({n: info for each in inputs for n, info in each.items()}, {})
        make = fn
        if streaming.rows_alone:
            fn = by_rows(signature, lambda given: {n: x[0] for n, x in make(given).items()})
        return Function(fn, signature, states_among(signature)).fixed(rows)

    found = {"noise": of(draw_noise, noise, start)}
    drawn = found["noise"].trace().structured_outputs["noise"]
    given = {"noise": TensorInfo(FLOAT32, tuple(drawn.shape))}
    if streaming.channels:
        kind = np.dtype(streaming.dtype.as_numpy_dtype)
        given[CHANNELS] = TensorInfo(kind, (rows, samples, streaming.channels))
        found["condition"] = of(find_condition, condition)
    else:
        given |= condition
    found["step"] = of(advance, given, temperature, start, state)
    found["draw"] = of(draw, noise, temperature, condition)
    return found


def states_among(signature: Signature) -> tuple[str, ...]:
    """Return the names of the inputs that are a state."""
    return tuple(name for name in signature.inputs if name.startswith(STATE))


def state_infos(specs: StateSpecs) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """Return the inputs of a state, by default zeros, and the outputs."""
    infos = {
        f"{STATE}{name}": TensorInfo(np.dtype(x.dtype.as_numpy_dtype), (None, *x.shape), default=0)
        for name, x in specs.items()
    }
    return infos, {name: TensorInfo(info.dtype, info.shape) for name, info in infos.items()}


def default_buckets(sample_rate_hz: int, hop_samples: int) -> list[int]:
    """Return the default lengths of sounds in frames, up to two minutes."""
    return [-(-round(seconds * sample_rate_hz) // hop_samples) for seconds in BUCKET_SECONDS]


def _signatures(
    streaming: StreamingModel, longest: int, temperature: float
) -> dict[str, Signature]:
    made = TensorInfo(FLOAT32, (None, None))
    sound = {streaming.output: made, "num_samples": _numbers(low=None)}
    low, high = (0.0, MAX_TEMPERATURE) if streaming.tempers else (temperature, temperature)
    noise = noise_infos((None,), low, high, temperature)
    state, returned = state_infos(streaming.state())
    if streaming.has_phase:
        state[PHASE] = TensorInfo(FLOAT64, (None,), 0, 1, 0)
        returned[PHASE] = TensorInfo(FLOAT64, (None,))
    position = {"start": _numbers(low=0, default=0)}
    conditions, window, counted = streaming.condition_infos(None), {}, "num_samples"
    if "frames" in conditions:
        counted, side = "num_frames", _numbers(low=0, high=streaming.side_frames, default=0)
        window = {"frames_before": side, "frames_after": side}
    length = {counted: _numbers(low=1, high=longest), **conditions}
    every = Signature({**length, **noise}, sound)
    chunk = Signature({**length, **window, **position, **noise, **state}, {**sound, **returned})
    return {PLAIN: every, "compiled": every, "chunk": chunk}


def _numbers(
    low: float | None, high: float | None = None, default: int | None = None
) -> TensorInfo:
    return TensorInfo(INT32, (None,), low, high, default)


def _synthesize(streaming: StreamingModel, steps: dict[int, Step], given: Tensors) -> Tensors:
    """Generate whole sounds, from position 0, in segments whose conditioning fits into memory."""
    frames, batch = given.get("frames"), tf.shape(given["row"])[0]
    source, lengths = noise_source(given, tf.zeros_like(given["row"])), given.get("num_samples")
    if frames is not None:
        lengths = tf.minimum(given["num_frames"], tf.shape(frames)[1]) * streaming.hop_samples
    longest = tf.reduce_max(lengths)
    wanted = MAX_BATCH_SEGMENT_SAMPLES // batch
    wanted = tf.clip_by_value(wanted, MIN_SEGMENT_SAMPLES, MAX_SEGMENT_SAMPLES)
    segment = _round_up(wanted, streaming.pieces[0])

    def body(first: tf.Tensor, sound: tf.Tensor, phase: tf.Tensor, state: State) -> tuple[Any, ...]:
        samples = tf.minimum(segment, _round_up(longest - first, streaming.pieces[0]))
        window = _window(streaming, lengths, first, samples)
        conditioning = streaming.conditions_of_rows(given, window, samples, phase)
        new, state = _run_steps(steps, source.after(first), conditioning, state, samples)
        phase = phase if conditioning.phase is None else conditioning.phase
        return first + samples, tf.concat([sound, new], 1), phase, state

    state = streaming.begin_rows(given)
    start = (tf.constant(0), tf.zeros([batch, 0]), tf.zeros([batch], tf.float64), state)
    shapes = (tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape([None]))
    _, sound, _, _ = tf.while_loop(
        lambda first, *_: first < longest,
        body,
        start,
        shape_invariants=(*shapes, _shapes(state)),
        parallel_iterations=1,
    )
    sound = _trim_to_lengths(streaming, sound, lengths)
    if frames is not None:
        missing = tf.shape(frames)[1] * streaming.hop_samples - tf.shape(sound)[1]
        sound = tf.pad(sound, [[0, 0], [0, missing]])
    return {streaming.output: sound, "num_samples": lengths}


def _chunk(streaming: StreamingModel, steps: dict[int, Step], given: Tensors) -> Tensors:
    frames, start, hop = given.get("frames"), given["start"], streaming.hop_samples
    state = streaming.begin_rows(given)
    lengths, window = given.get("num_samples"), None
    if frames is not None:
        before, count = given["frames_before"], given["num_frames"]
        lengths = count * hop
        high = tf.minimum(before + count + given["frames_after"], tf.shape(frames)[1])
        window = Window(tf.zeros_like(before), high, before, lengths)
    samples = _round_up(tf.reduce_max(lengths), streaming.pieces[0])
    conditioning = streaming.conditions_of_rows(given, window, samples, given.get(PHASE))
    sound, later = _run_steps(steps, noise_source(given, start), conditioning, state, samples)
    after = {f"{STATE}{name}": value for name, value in later.items()}
    if streaming.has_phase:
        after[PHASE] = conditioning.phase
    made = _trim_to_lengths(streaming, sound, lengths)
    return {streaming.output: made, "num_samples": lengths, **after}


def noise_source(given: Tensors, start: tf.Tensor) -> NoiseSource:
    """Return the noise source of rows that start at given positions, int32 [batch]."""
    return NoiseSource(keys_of(given["seed"]), given["row"], start, given["temperature"])
