"""The signatures of an audio model, whole and in segments.

The conditioning of a row depends on where its frames end, because the last frames are repeated
beyond the end. Rows of different lengths are therefore not padded before that step: each row's
conditioning is computed separately, outside XLA, and then padded with zeros to the longest row's.
Generation from it is causal, so nothing after a row's end changes the row.

`serving_default` generates whole sounds with TensorFlow's own kernels. `compiled` generates the
same sounds piece by piece; XLA compiles pieces of only two lengths, which serve for sounds of any
length. `chunk` runs the same pieces for clients that keep the state: it generates the next segment
of each row, which starts at any position.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.signature import CHUNK, COMPILED, PLAIN, STATE, Signature, TensorInfo
from onepass.bundles.streaming_models import (
    Advanced,
    Conditioning,
    Filled,
    Maybe,
    NoiseSource,
    Size,
    State,
    StreamingModel,
    streaming_model,
    unit_samples,
)
from onepass.bundles.writing import Exported, Tensors, concrete_function, serving_spec

MAX_SEGMENT_SAMPLES = 160_000  # per row, whose conditioning must fit into memory
MIN_SEGMENT_SAMPLES = 80_000
MAX_BATCH_SEGMENT_SAMPLES = 640_000  # for all rows together
ROWS_AT_ONCE = 4  # rows that run in parallel, each in a batch of one
Step = Callable[[NoiseSource, Any, State], tuple[Any, State]]


@dataclasses.dataclass(frozen=True)
class Window:
    """The frames that condition a segment of each row; every field is int32 [batch].

    `samples` is 0 in a row that has ended; `start` is the position of the first frame's first
    sample.
    """

    low: Any
    high: Any
    skipped: Any
    samples: Any
    start: Any


def make_steps(streaming: StreamingModel, compiled: bool) -> dict[int, Step]:
    """Return the functions that generate one piece, by its length in samples, longest first."""
    short, long = streaming.pieces
    return {size: _step(streaming, size, compiled) for size in dict.fromkeys((long, short))}


def first_state(streaming: StreamingModel, batch: Size) -> State:
    """Return the state before the first sample of each of `batch` rows."""
    return {
        name: tf.fill([batch, *shape], tf.constant(fill, dtype))
        for name, (dtype, shape, fill) in streaming.state().items()
    }


def synthesize(
    streaming: StreamingModel,
    steps: dict[int, Step],
    frames: Maybe,
    lengths: tf.Tensor,
    speaker: Maybe,
    source: NoiseSource,
    state: State,
) -> tf.Tensor:
    """Generate whole sounds, float32 [batch, longest], clipped to the model's limits.

    Samples after a row's end are 0. `frames` are float32 [batch, frames, features], `lengths` int32
    [batch] samples; noise and state start at position 0.
    """
    batch, longest = tf.shape(lengths)[0], tf.reduce_max(lengths)
    segment = _segment_samples(streaming, batch)

    def body(first: tf.Tensor, sound: tf.Tensor, phase: tf.Tensor, state: State) -> tuple[Any, ...]:
        samples = tf.minimum(segment, round_up(longest - first, streaming.pieces[0]))
        window = _window(streaming, lengths, first, samples)
        conditioning = row_conditioning(streaming, frames, speaker, window, samples, phase)
        new, state = run_steps(steps, source.after(first), conditioning, state, samples)
        phase = phase if conditioning.phase is None else conditioning.phase
        return first + samples, tf.concat([sound, new], 1), phase, state

    start = (tf.constant(0), tf.zeros([batch, 0]), tf.zeros([batch], tf.float64), state)
    shapes = (tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape([None]))
    _, sound, _, _ = tf.while_loop(
        lambda first, *_: first < longest,
        body,
        start,
        shape_invariants=(*shapes, _shapes(state)),
        parallel_iterations=1,
    )
    return trim_to_lengths(sound, lengths, streaming.limits)


def trim_to_lengths(
    sound: tf.Tensor, lengths: tf.Tensor, limits: tuple[float, float] | None
) -> tf.Tensor:
    """Clip samples to the limits, set those after a row's end to 0, and cut at the longest row."""
    sound = sound[:, : tf.reduce_max(lengths)]
    if limits is not None:
        sound = tf.clip_by_value(sound, *limits)
    within = tf.sequence_mask(lengths, tf.shape(sound)[1])
    return tf.where(within, sound, tf.zeros_like(sound))


def row_conditioning(
    streaming: StreamingModel,
    frames: Maybe,
    speaker: Maybe,
    window: Window | None,
    samples: Size,
    phase: Maybe,
) -> Conditioning:
    """Return the conditioning of `samples` samples of each row, [batch, samples, ...].

    Shorter rows are padded with zeros. There is no `window` without frames, and no `phase`, float64
    [batch] before the segment, without a source that has one.
    """
    if frames is None or window is None:
        return (
            streaming.conditioning(None, speaker, samples, None, 0, 0)
            if streaming.channels
            else Conditioning(None)
        )
    before: Any = phase  # not None if the model has a phase
    shapes = {"channels": tf.TensorSpec([None, streaming.channels], streaming.dtype)}
    if streaming.has_phase:
        shapes["phase"] = tf.TensorSpec([], tf.float64)

    def row(n: tf.Tensor) -> dict[str, tf.Tensor]:
        # A row that has ended has no frames in the segment, and so no conditioning.
        def end_chunk() -> dict[str, tf.Tensor]:
            empty = {
                name: tf.zeros([0, *spec.shape[1:]], spec.dtype) for name, spec in shapes.items()
            }
            return {**empty, "phase": before[n]} if streaming.has_phase else empty

        def conditioning() -> dict[str, tf.Tensor]:
            result = streaming.conditioning(
                frames[n, window.low[n] : window.high[n]][None],
                None if speaker is None else speaker[n][None],
                window.samples[n],
                None if phase is None else phase[n][None],
                window.skipped[n],
                window.start[n],
            )
            return {name: getattr(result, name)[0] for name in shapes}

        parts = tf.cond(window.samples[n] > 0, conditioning, end_chunk)
        short = samples - window.samples[n]
        for name in shapes.keys() - {"phase"}:
            sides = [[0, short]] + [[0, 0]] * (len(shapes[name].shape) - 1)
            parts[name] = tf.pad(parts[name], sides)
        return parts

    rows = tf.range(tf.shape(window.samples)[0])
    return Conditioning(**tf.map_fn(row, rows, fn_output_signature=shapes))


def run_steps(
    steps: dict[int, Step],
    source: NoiseSource,
    conditioning: Conditioning,
    state: State,
    samples: Size,
) -> Advanced:
    """Generate the next samples, float32 [batch, samples], not clipped, and the state after them.

    Noise and conditioning begin at the first; `samples` is a multiple of the shortest piece.
    """
    sound = tf.zeros([tf.shape(source.row)[0], 0])
    for size, step in steps.items():
        sound, state = _pieces(size, step, source, conditioning.channels, sound, state, samples)
    return sound, state


def _pieces(
    size: int,
    step: Step,
    source: NoiseSource,
    channels: Maybe,
    sound: tf.Tensor,
    state: State,
    samples: Size,
) -> Advanced:
    def body(first: tf.Tensor, sound: tf.Tensor, state: State) -> tuple[Any, ...]:
        part = None
        if channels is not None:
            part = channels[:, first : first + size]
            part = tf.ensure_shape(part, [None, size, channels.shape[-1]])
        new, state = step(source.after(first), part, state)
        return first + size, tf.concat([sound, new], 1), state

    _, sound, state = tf.while_loop(
        lambda first, *_: first + size <= samples,
        body,
        (tf.shape(sound)[1], sound, state),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None]), _shapes(state)),
        parallel_iterations=1,
    )
    return sound, state


def _step(streaming: StreamingModel, size: int, compiled: bool) -> Step:
    # The fields of `NoiseSource` one by one: a `tf.function` does not flatten a dataclass.
    def step(
        key: tf.Tensor,
        row: tf.Tensor,
        start: tf.Tensor,
        temperature: tf.Tensor,
        channels: Maybe,
        state: State,
    ) -> Advanced:
        return streaming.advance(NoiseSource(key, row, start, temperature), channels, state, size)

    run = tf.function(step, jit_compile=True, autograph=False) if compiled else step

    def together(source: NoiseSource, channels: Maybe, state: State) -> Advanced:
        return run(source.key, source.row, source.start, source.temperature, channels, state)

    def rows_alone(source: NoiseSource, channels: Maybe, state: State) -> Advanced:
        given = (source.key, source.row, source.start, source.temperature, channels, state)

        def row(n: tf.Tensor) -> Any:
            return _at(run(*_at(given, slice(n, n + 1))), 0)

        shapes = {name: tf.TensorSpec(v.shape[1:], v.dtype) for name, v in state.items()}
        signature = (tf.TensorSpec([size], tf.float32), shapes)
        rows = tf.range(tf.shape(source.row)[0])
        return tf.map_fn(row, rows, fn_output_signature=signature, parallel_iterations=ROWS_AT_ONCE)

    return rows_alone if streaming.rows_alone else together


def _at(given: Any, index: tf.Tensor | slice | int) -> Any:
    return tf.nest.map_structure(lambda x: None if x is None else x[index], given)


def _window(
    streaming: StreamingModel, lengths: tf.Tensor, first: tf.Tensor, samples: tf.Tensor
) -> Window:
    hop = streaming.hop_samples
    frame, count = first // hop, -(-lengths // hop)
    low = tf.maximum(frame - streaming.side_frames, 0)
    requested = tf.clip_by_value(lengths - first, 0, samples)
    high = tf.minimum(frame - (-requested // hop) + streaming.side_frames, count)
    same = tf.ones_like(lengths)
    return Window(low * same, high, (frame - low) * same, requested, low * hop * same)


def _segment_samples(streaming: StreamingModel, batch: tf.Tensor) -> tf.Tensor:
    unit = unit_samples(streaming)
    wanted = tf.clip_by_value(
        MAX_BATCH_SEGMENT_SAMPLES // batch, MIN_SEGMENT_SAMPLES, MAX_SEGMENT_SAMPLES
    )
    return round_up(wanted, unit)


def round_up(samples: Size, unit: int) -> Any:
    """Return the smallest multiple of `unit` that is at least `samples`."""
    return -(-samples // unit) * unit


def _shapes(state: State) -> dict[str, tf.TensorShape]:
    return {name: tf.TensorShape([None, *value.shape[1:]]) for name, value in state.items()}


PHASE = "state_turns"
BATCHES = (1, 2, 4, 8)
ANY_BATCHES = tuple(range(1, 9))  # rows cost the same in any batch, so no batch is padded
BUCKET_SECONDS = (0.5, 1, 2, 4, 8, 15, 30, 60, 120)
MAX_TEMPERATURE = 4.0
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


def export_functions(
    model: Any,
    *,
    allowed_batches: Sequence[int] = (),
    buckets: Sequence[int] = (),
) -> Exported:
    """Return the signatures of a speech model."""
    streaming = streaming_model(model.network)
    lengths = sorted(set(buckets)) or default_buckets(
        model.front.sample_rate_hz, streaming.hop_samples
    )
    return streaming_functions(streaming, lengths, allowed_batches, model.front.temperature)


def streaming_functions(
    streaming: StreamingModel,
    lengths: Sequence[int],
    allowed_batches: Sequence[int] = (),
    temperature: float = 1.0,
) -> Exported:
    """Return the signatures of a model that continues from a state, for rows of `lengths` frames.

    `temperature` is the only one unless `streaming.tempers`; the last of the lengths is the longest
    sound's.
    """
    batches = sorted(set(allowed_batches)) or list(ANY_BATCHES if streaming.rows_alone else BATCHES)
    usual = _signatures(streaming, lengths[-1], temperature)
    signatures = {name: streaming.name_inputs(signature) for name, signature in usual.items()}
    compiled = make_steps(streaming, compiled=True)
    rows: dict[str, Callable[[Tensors], Tensors]] = {
        PLAIN: lambda given: _synthesize(streaming, make_steps(streaming, compiled=False), given),
        COMPILED: lambda given: _synthesize(streaming, compiled, given),
        CHUNK: lambda given: _chunk(streaming, compiled, given),
    }
    functions = {name: concrete_function(signatures[name], make) for name, make in rows.items()}
    serving = serving_spec(signatures, batches, max_frames=lengths[-1])
    serving["cropped"] = {streaming.output: {"axis": 1, "length": "num_samples"}}
    serving["streaming"] = _streaming_spec(streaming, signatures[CHUNK])
    padded = {
        name: {"axis": 1, "length": length, "buckets": list(lengths)}
        for name, length in streaming.count_inputs().items()
    }
    serving |= {"padded": padded} if padded else {}
    return Exported(functions, serving, streaming.variables)


def default_buckets(sample_rate_hz: int, hop_samples: int) -> list[int]:
    """Return the default lengths of sounds in frames, up to two minutes."""
    return [-(-round(seconds * sample_rate_hz) // hop_samples) for seconds in BUCKET_SECONDS]


def _signatures(
    streaming: StreamingModel, longest: int, temperature: float
) -> dict[str, Signature]:
    made = TensorInfo(FLOAT32, (None, None))
    sound = {streaming.output: made, "num_samples": _numbers(low=None)}
    low, high = (0.0, MAX_TEMPERATURE) if streaming.tempers else (temperature, temperature)
    noise = {
        "seed": TensorInfo(INT64, (None,), default=0),
        "row": _numbers(low=0, default=0),
        "temperature": TensorInfo(FLOAT32, (None,), low, high, temperature),
    }
    if streaming.speakers:
        noise["speaker"] = _numbers(low=0, high=streaming.speakers - 1, default=0)
    state = {f"{STATE}{name}": _info(filled) for name, filled in streaming.state().items()}
    if streaming.has_phase:
        state[PHASE] = TensorInfo(FLOAT64, (None,), 0, 1, 0)
    returned = {name: TensorInfo(info.dtype, info.shape) for name, info in state.items()}
    position = {"start": _numbers(low=0, default=0)}
    length, window = {"num_samples": _numbers(low=1, high=longest)}, {}
    if streaming.feature_channels:
        side, channels = streaming.side_frames, streaming.feature_channels
        largest = streaming.largest_feature
        limits = (None, None) if largest is None else (-largest, largest)
        frames = TensorInfo(FLOAT32, (None, None, channels), *limits)
        length = {"frames": frames, "num_frames": _numbers(low=1, high=longest)}
        window = {
            "frames_before": _numbers(low=0, high=side, default=0),
            "frames_after": _numbers(low=0, high=side, default=0),
        }
    every = Signature({**length, **noise}, sound)
    chunk = Signature({**length, **window, **position, **noise, **state}, {**sound, **returned})
    return {PLAIN: every, COMPILED: every, CHUNK: chunk}


def _numbers(
    low: float | None, high: float | None = None, default: int | None = None
) -> TensorInfo:
    return TensorInfo(INT32, (None,), low, high, default)


def _info(filled: Filled) -> TensorInfo:
    dtype, shape, fill = filled
    # Levels, and the number after them for "no past"; integers that start at 0 have no limit.
    top = fill if dtype == tf.int32 and fill else None
    low = None if top is None else 0
    return TensorInfo(np.dtype(dtype.as_numpy_dtype), (None, *shape), low, top, fill)


def _streaming_spec(streaming: StreamingModel, chunk: Signature) -> dict[str, Any]:
    """Return the information that clients of `chunk` need.

    Returns:
      A dict with, among others, side_frames: the number of frames to pass before and after a
        segment, or fewer at the ends of the sound, counted by `frames_before` and `frames_after`;
        unit_samples: the length of every chunk but the last must be a multiple of it, and all rows
        of a call must have equal length; pieces: the compiled lengths; rows_alone: whether each row
        is generated separately, by pieces that are compiled for batch size 1.
    """
    state = {name: info for name, info in chunk.inputs.items() if name.startswith(STATE)}
    return {
        "signature": CHUNK,
        "side_frames": streaming.side_frames,
        "hop_samples": streaming.hop_samples,
        "unit_samples": unit_samples(streaming),
        "pieces": list(streaming.pieces),
        "rows_alone": streaming.rows_alone,
        "state": {
            name: {"dtype": info.dtype.name, "shape": info.sizes, "fill": info.default}
            for name, info in state.items()
        },
    }


def _synthesize(streaming: StreamingModel, steps: dict[int, Step], given: Tensors) -> Tensors:
    given = streaming.join_frames(given)
    frames, speaker = given.get("frames"), given.get("speaker")
    state = streaming.begin_rows(given, first_state(streaming, tf.shape(given["row"])[0]))
    source = noise_source(given, tf.zeros_like(given["row"]))
    if frames is None:
        lengths = given["num_samples"]
        made = synthesize(streaming, steps, None, lengths, speaker, source, state)
        return {streaming.output: made, "num_samples": lengths}
    count = tf.shape(frames)[1]
    lengths = tf.minimum(given["num_frames"], count) * streaming.hop_samples
    sound = synthesize(streaming, steps, frames, lengths, speaker, source, state)
    missing = count * streaming.hop_samples - tf.shape(sound)[1]
    return {streaming.output: tf.pad(sound, [[0, 0], [0, missing]]), "num_samples": lengths}


def _chunk(streaming: StreamingModel, steps: dict[int, Step], given: Tensors) -> Tensors:
    given = streaming.join_frames(given)
    frames, start, hop = given.get("frames"), given["start"], streaming.hop_samples
    state = {name: given[f"{STATE}{name}"] for name in streaming.state()}
    state = streaming.begin_rows(given, state)
    lengths, window = given.get("num_samples"), None
    if frames is not None:
        before, count = given["frames_before"], given["num_frames"]
        lengths = count * hop
        high = tf.minimum(before + count + given["frames_after"], tf.shape(frames)[1])
        # `start` is the segment's position; the first frame may be a neighbour before it.
        window = Window(tf.zeros_like(before), high, before, lengths, start - before * hop)
    samples = round_up(tf.reduce_max(lengths), streaming.pieces[0])
    conditioning = row_conditioning(
        streaming, frames, given.get("speaker"), window, samples, given.get(PHASE)
    )
    sound, later = run_steps(steps, noise_source(given, start), conditioning, state, samples)
    after = {f"{STATE}{name}": value for name, value in later.items()}
    if streaming.has_phase:
        after[PHASE] = conditioning.phase
    made = trim_to_lengths(sound, lengths, streaming.limits)
    return {streaming.output: made, "num_samples": lengths, **after}


def noise_source(given: Tensors, start: tf.Tensor) -> NoiseSource:
    """Return the noise source of rows that start at given positions, int32 [batch]."""
    # The bitcast returns the low word first.
    key = tf.reverse(tf.bitcast(given["seed"], tf.int32), [-1])
    return NoiseSource(key, given["row"], start, given["temperature"])
