"""The signatures of an audio model, or of a user's model of sequences.

`serving_default` generates whole sounds with TensorFlow's own kernels. `compiled` generates the
same sounds piece by piece; XLA compiles pieces of only two lengths, which serve for sounds of any
length. `chunk` runs the same pieces for clients that keep the state: it generates the next segment
of each row, which starts at any position.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.audio_chunks import (
    Step,
    Window,
    first_state,
    make_steps,
    round_up,
    row_conditioning,
    run_steps,
    synthesize,
    trim_to_lengths,
)
from onepass.bundles.functions import Exported, Tensors, concrete_function, serving_spec
from onepass.bundles.signature import CHUNK, COMPILED, PLAIN, STATE, Signature, TensorInfo
from onepass.bundles.streaming_models import (
    Filled,
    NoiseSource,
    StreamingModel,
    streaming_model,
    unit_samples,
)

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
    """Return the signatures of a speech model.

    Args:
      allowed_batches: batch sizes of the server, each compiled for a student; empty: 1, 2, 4, 8 for
        a student, 1 to 8 for a WaveNet.
      buckets: lengths that rows are padded to, in frames (in samples, for a model without frames);
        the largest is the length of the longest sound. Empty: default lengths, up to two minutes.
    """
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
