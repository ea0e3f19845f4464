"""The periodic source of a voice: pulses at a fundamental frequency estimated from the frames.

Their phase is a running sum, carried in the state from chunk to chunk.
"""

import math

import tensorflow as tf

TOP_SHARE = 0.47  # of the sample rate; harmonics above are left out


def upsampled(frames, hop: int):
    """Return [batch, frames * hop] of [batch, frames], linear between the frames' centres."""
    before = tf.concat([frames[:, :1], frames[:, :-1]], 1)
    after = tf.concat([frames[:, 1:], frames[:, -1:]], 1)
    offset = (tf.range(hop, dtype=frames.dtype) + 0.5) / hop - 0.5
    left, right = tf.nn.relu(-offset), tf.nn.relu(offset)
    parts = (
        before[..., None] * left
        + frames[..., None] * (1.0 - left - right)
        + after[..., None] * right
    )
    return tf.reshape(parts, [tf.shape(frames)[0], -1])


def running_phase(f0_hz, sample_rate_hz: int, phase_cycles, at: int | tf.Tensor):
    """Return the phase in cycles, float64 [batch, time], given that before sample `at`.

    Args:
      f0_hz: [batch, time].
      sample_rate_hz: of the sound.
      phase_cycles: [batch], before sample `at`.
      at: an integer or an int32 scalar.
    """
    total = tf.cumsum(tf.cast(f0_hz, tf.float64) / sample_rate_hz, 1)
    offset = phase_cycles - tf.pad(total, [[0, 0], [1, 0]])[:, at]
    phase = total + offset[:, None]
    return phase - tf.floor(phase)


def pulse_train(phase_cycles, f0_hz, sample_rate_hz: int):
    """Return sqrt(2 / N) sum_{k=1..N} cos(2 pi k phase_cycles), float32 [batch, time].

    This is Dirichlet's kernel, where N is the number of harmonics up to 0.47 of the sample rate;
    the mean square is 1.

    Args:
      phase_cycles: float64 [batch, time].
      f0_hz: [batch, time].
      sample_rate_hz: of the sound.
    """
    count = tf.floor(TOP_SHARE * sample_rate_hz / f0_hz)
    x = tf.cast(phase_cycles - tf.round(phase_cycles), tf.float32) * math.pi
    near = tf.abs(x) < 1e-4
    safe = tf.where(near, tf.ones_like(x), x)
    total = tf.sin((2.0 * count + 1.0) * safe) / (2.0 * tf.sin(safe)) - 0.5
    return tf.where(near, count, total) * tf.sqrt(2.0 / tf.maximum(count, 1.0))
