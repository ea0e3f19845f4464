"""Functions that generate audio in segments: first a row's conditioning, then piece by piece.

The conditioning of a row depends on where its frames end, because the last frames are repeated
beyond the end. Rows of different lengths are therefore not padded before that step: each row's
conditioning is computed separately, outside XLA, and then padded with zeros to the longest row's.
Generation from it is causal, so nothing after a row's end changes the row.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onepass.bundles.streaming_models import (
    Advanced,
    Conditioning,
    Maybe,
    NoiseSource,
    Size,
    State,
    StreamingModel,
    unit_samples,
)

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
    """Return the length of a segment, int32 [], in samples, which is shorter for larger batches."""
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
