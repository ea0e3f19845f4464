"""Sound stretch by stretch, as graphs: what rows are told, and the pieces that are made of it.

The condition of a row depends on where its frames end, since frames at the edge stand for what lies
beyond. Rows of different length are therefore not padded before it: each gets its own, outside XLA,
which is then padded with zeros to the longest. What makes sound of it is causal, so that nothing
behind a row's end changes the row.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from serving.bundles.streaming_models import Drawn, State, Told, Voice, unit_samples

LONGEST_STRETCH, SHORTEST_STRETCH = 160_000, 80_000  # samples of a row whose condition is in memory
ALL_STRETCHES = 640_000  # of all rows
ROWS_AT_ONCE = 4  # of those that are made alone
Step = Callable[[Drawn, Any, State], tuple[Any, State]]


@dataclasses.dataclass(frozen=True)
class Window:
    """Where what a row is told comes from, int32 [batch] each.

    low, high: its frames, with their neighbours. skipped: those that are neighbours before.
    samples: asked for; 0 where a row has ended. start: position of the first frame's first sample.
    """

    low: Any
    high: Any
    skipped: Any
    samples: Any
    start: Any


def steps_of(voice: Voice, compiled: bool) -> dict[int, Step]:
    """What makes each piece of sound, by its length in samples, from the longest."""
    short, long = voice.pieces
    return {size: _step(voice, size, compiled) for size in dict.fromkeys((long, short))}


def first_state(voice: Voice, batch) -> State:
    """The state before the first sample."""
    return {
        name: tf.fill([batch, *shape], tf.constant(fill, dtype))
        for name, (dtype, shape, fill) in voice.state().items()
    }


def whole(voice: Voice, steps: dict[int, Step], frames, lengths, speaker, drawn: Drawn):
    """Whole sounds, float32 [batch, longest] in [-1, 1], zeros behind each row's end.

    Args:
      voice, steps: of `steps_of`.
      frames: float32 [batch, frames, features] or None.
      lengths: of the sounds, int32 [batch], in samples.
      speaker: int32 [batch] or None.
      drawn: the noise from position 0 on.
    """
    batch, longest = tf.shape(lengths)[0], tf.reduce_max(lengths)
    stretch = _stretch(voice, batch)

    def body(first, sound, turns, state):
        samples = tf.minimum(stretch, up(longest - first, voice.pieces[0]))
        window = _window(voice, lengths, first, samples)
        told = rows_told(voice, frames, speaker, window, samples, turns)
        made, state = made_of(steps, drawn.after(first), told, state, samples)
        turns = turns if told.turns is None else told.turns
        return first + samples, tf.concat([sound, made], 1), turns, state

    state = first_state(voice, batch)
    start = (tf.constant(0), tf.zeros([batch, 0]), tf.zeros([batch], tf.float64), state)
    shapes = (tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape([None]))
    _, sound, _, _ = tf.while_loop(
        lambda first, *_: first < longest,
        body,
        start,
        shape_invariants=(*shapes, _shapes(state)),
        parallel_iterations=1,
    )
    return cut(sound, lengths)


def cut(sound, lengths):
    """float32 [batch, longest] in [-1, 1], zeros behind each row's end."""
    sound = tf.clip_by_value(sound[:, : tf.reduce_max(lengths)], -1.0, 1.0)
    within = tf.sequence_mask(lengths, tf.shape(sound)[1])
    return tf.where(within, sound, tf.zeros_like(sound))


def rows_told(voice: Voice, frames, speaker, window: Window | None, samples, turns) -> Told:
    """What so many samples of every row are told, [batch, samples, ...], row by row.

    Args:
      voice: whose condition it is.
      frames: float32 [batch, frames, features] or None.
      speaker: int32 [batch] or None.
      window: where it comes from; None without frames.
      samples: int32 []; rows that ask for fewer are padded with zeros.
      turns: float64 [batch], the phase before.
    """
    if frames is None or window is None:
        return voice.told(None, speaker, samples, None, 0, 0) if voice.channels else Told(None)
    shapes = {"channels": tf.TensorSpec([None, voice.channels], voice.dtype)}
    if voice.drafts:
        shapes["draft"] = tf.TensorSpec([None], tf.float32)
        shapes["turns"] = tf.TensorSpec([], tf.float64)

    def row(n):
        def ended():
            empty = {
                name: tf.zeros([0, *spec.shape[1:]], spec.dtype) for name, spec in shapes.items()
            }
            return {**empty, "turns": turns[n]} if voice.drafts else empty

        def told():
            made = voice.told(
                frames[n, window.low[n] : window.high[n]][None],
                None if speaker is None else speaker[n][None],
                window.samples[n],
                None if turns is None else turns[n][None],
                window.skipped[n],
                window.start[n],
            )
            return {name: getattr(made, name)[0] for name in shapes}

        parts = tf.cond(window.samples[n] > 0, told, ended)
        short = samples - window.samples[n]
        for name in shapes.keys() - {"turns"}:
            sides = [[0, short]] + [[0, 0]] * (len(shapes[name].shape) - 1)
            parts[name] = tf.pad(parts[name], sides)
        return parts

    rows = tf.range(tf.shape(window.samples)[0])
    return Told(**tf.map_fn(row, rows, fn_output_signature=shapes))


def made_of(steps: dict[int, Step], drawn: Drawn, told: Told, state: State, samples):
    """The sound that follows, float32 [batch, samples], not clipped, and the state after it.

    samples: int32 [], a multiple of the shortest piece.
    """
    sound = tf.zeros([tf.shape(drawn.row)[0], 0])
    for size, step in steps.items():
        sound, state = _pieces(size, step, drawn, told.channels, sound, state, samples)
    return (sound if told.draft is None else sound + told.draft), state


def _pieces(size: int, step: Step, drawn: Drawn, channels, sound, state: State, samples):
    """The sound with as many pieces of a size added as fit, and the state after them."""

    def body(first, sound, state):
        part = None
        if channels is not None:
            part = channels[:, first : first + size]
            part = tf.ensure_shape(part, [None, size, channels.shape[-1]])
        made, state = step(drawn.after(first), part, state)
        return first + size, tf.concat([sound, made], 1), state

    _, sound, state = tf.while_loop(
        lambda first, *_: first + size <= samples,
        body,
        (tf.shape(sound)[1], sound, state),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None]), _shapes(state)),
        parallel_iterations=1,
    )
    return sound, state


def _step(voice: Voice, size: int, compiled: bool) -> Step:
    def step(key, row, start, temperature, channels, state):
        return voice.advance(Drawn(key, row, start, temperature), channels, state, size)

    run = tf.function(step, jit_compile=True, autograph=False) if compiled else step

    def together(drawn: Drawn, channels, state: State):
        return run(drawn.key, drawn.row, drawn.start, drawn.temperature, channels, state)

    def alone(drawn: Drawn, channels, state: State):
        given = (drawn.key, drawn.row, drawn.start, drawn.temperature, channels, state)

        def row(n):
            return _at(run(*_at(given, slice(n, n + 1))), 0)

        shapes = {name: tf.TensorSpec(v.shape[1:], v.dtype) for name, v in state.items()}
        signature = (tf.TensorSpec([size], tf.float32), shapes)
        rows = tf.range(tf.shape(drawn.row)[0])
        return tf.map_fn(row, rows, fn_output_signature=signature, parallel_iterations=ROWS_AT_ONCE)

    return alone if voice.alone else together


def _at(given, place):
    """Every tensor of a nest at a place of its first axis; None stays."""
    return tf.nest.map_structure(lambda x: None if x is None else x[place], given)


def _window(voice: Voice, lengths, first, samples) -> Window:
    """Of these samples of sounds whose frames are all there."""
    hop = voice.hop_samples
    frame, count = first // hop, -(-lengths // hop)
    low = tf.maximum(frame - voice.side_frames, 0)
    asked = tf.clip_by_value(lengths - first, 0, samples)
    high = tf.minimum(frame - (-asked // hop) + voice.side_frames, count)
    same = tf.ones_like(lengths)
    return Window(low * same, high, (frame - low) * same, asked, low * hop * same)


def _stretch(voice: Voice, batch):
    unit = unit_samples(voice)
    wanted = tf.clip_by_value(ALL_STRETCHES // batch, SHORTEST_STRETCH, LONGEST_STRETCH)
    return up(wanted, unit)


def up(samples, unit: int):
    """The least multiple of the unit that is not below."""
    return -(-samples // unit) * unit


def _shapes(state: State):
    return {name: tf.TensorShape([None, *value.shape[1:]]) for name, value in state.items()}
