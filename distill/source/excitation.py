"""The periodic source of a voice: pulses at a fundamental frequency estimated from the frames.

Their phase is a running sum and travels with the state from chunk to chunk.
"""

import math

import tensorflow as tf

from distill.config import StudentConfig
from likelihoods.initial import Initial
from replicator.runs.progress import Progress
from replicator.training.config import OptimizerConfig
from replicator.training.state import TrainState
from wavenet.data import ClipSource, batch

REFERENCE_HZ = 200.0
LOWEST_HZ, HIGHEST_HZ = 60.0, 600.0
WIDTH = 96  # channels of the reader
ESTIMATOR_CLIPS = 16
ESTIMATOR_OPTIMIZER = OptimizerConfig(2e-3, 50, "cosine", average_decay=0.99)
TOP_SHARE = 0.47  # of the sample rate; harmonics above are left out


class PitchEstimator(tf.Module):
    """A small network that estimates F0 and voicing from frames."""

    def __init__(self, config: StudentConfig, initial: Initial, name="pitch_reader"):
        super().__init__(name=name)
        self.kernels = [
            initial.kernel([5, config.feature_channels, WIDTH], "kernel_0", gain=4.0),
            initial.kernel([5, WIDTH, WIDTH], "kernel_1", gain=math.sqrt(2.0)),
            initial.kernel([3, WIDTH, WIDTH], "kernel_2", gain=math.sqrt(2.0)),
        ]
        self.biases = [initial.zeros([WIDTH], f"bias_{i}") for i in range(len(self.kernels))]
        self.head_kernel = initial.kernel([WIDTH, 2], "head_kernel", gain=0.1)
        self.head_bias = initial.zeros([2], "head_bias")

    def __call__(self, frames):
        """log2(F0 / 200 Hz) and the logit of voicing, [batch, frames] each.

        frames: float32 [batch, frames, features].
        """
        hidden = frames
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            side = kernel.shape[0] // 2
            padded = tf.pad(hidden, [[0, 0], [side, side], [0, 0]])
            hidden = tf.nn.relu(tf.nn.conv1d(padded, kernel, 1, "VALID") + bias)
        raw = tf.matmul(hidden, self.head_kernel) + self.head_bias
        low, high = (math.log2(hz / REFERENCE_HZ) for hz in (LOWEST_HZ, HIGHEST_HZ))
        return tf.clip_by_value(raw[..., 0], low, high), raw[..., 1]

    def pitch(self, frames):
        """F0 features [batch, frames, 2], as `log_f0_features`, without a gradient."""
        octaves, logit = self(tf.cast(frames, tf.float32))
        return tf.stop_gradient(tf.stack([octaves, tf.cast(logit > 0.0, tf.float32)], -1))

    @property
    def side_frames(self) -> int:
        """Frames on either side that one frame's answer depends on."""
        return sum(kernel.shape[0] // 2 for kernel in self.kernels)


def pitch_loss(reader: PitchEstimator, frames, pitch, voiced_share=None):
    """Returns the estimator's loss, []: an error in semitones where voiced, and a cross-entropy.

    The error counts squared up to a semitone and as it is beyond: an octave missed is one mistake.

    Args:
      frames: [batch, frames, features].
      pitch: [batch, frames, 2], log2(F0 / 200 Hz) and 0 or 1, of `log_f0_features`.
      voiced_share: the voiced share of the frames, if not of these: of a batch that they are of.
    """
    octaves, voiced = tf.unstack(pitch, axis=-1)
    read, logit = reader(frames)
    off = tf.abs(12.0 * (read - octaves))
    error = tf.reduce_mean(voiced * tf.minimum(tf.square(off), off))
    doubt = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(voiced, logit))
    share = tf.reduce_mean(voiced) if voiced_share is None else voiced_share
    return error / tf.maximum(share, 1e-3) + doubt


def train_pitch_estimator(
    reader: PitchEstimator, source: ClipSource, channels: int, steps: int, seed: int
):
    """Trains the estimator on clips of frames; returns the last value of `pitch_loss`.

    Args:
      source: of `wavenet.data.pipeline.source_of`, whose frames end in the two F0 channels.
      channels: of the frames, how many the estimator reads.
      steps: updates of 16 clips.
      seed: of the order of clips.
    """
    state = TrainState(reader, ESTIMATOR_OPTIMIZER, steps)

    @tf.function(autograph=False)
    def update(frames):
        def loss(_):
            return pitch_loss(reader, frames[..., :channels], frames[..., -2:]), {}

        values, metrics = state.update(loss, {})
        state.assign(values)
        return metrics["loss"]

    value = math.inf
    with Progress(steps, "estimating F0", "step") as progress:
        for step in range(steps):
            value = float(update(batch(source, seed, step, ESTIMATOR_CLIPS)["frames"]))
            progress.advance(loss=value)
    state.use_average()
    return value


def upsampled(frames, hop: int):
    """[batch, frames * hop] from [batch, frames], linear between the middles of the frames."""
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
    """The phase in cycles, float64 [batch, time], given `phase_cycles` [batch] before sample `at`.

    Args:
      f0_hz: [batch, time]. at: an integer or an int32 scalar.
    """
    total = tf.cumsum(tf.cast(f0_hz, tf.float64) / sample_rate_hz, 1)
    offset = phase_cycles - tf.pad(total, [[0, 0], [1, 0]])[:, at]
    phase = total + offset[:, None]
    return phase - tf.floor(phase)


def pulse_train(phase_cycles, f0_hz, sample_rate_hz: int):
    """sqrt(2 / N) sum_{k=1..N} cos(2 pi k phase_cycles), float32 [batch, time]: Dirichlet's kernel.

    N is the number of harmonics up to 0.47 of the sample rate; the mean square is 1.

    Args:
      phase_cycles: float64 [batch, time]. f0_hz: [batch, time].
    """
    count = tf.floor(TOP_SHARE * sample_rate_hz / f0_hz)
    x = tf.cast(phase_cycles - tf.round(phase_cycles), tf.float32) * math.pi
    near = tf.abs(x) < 1e-4
    safe = tf.where(near, tf.ones_like(x), x)
    total = tf.sin((2.0 * count + 1.0) * safe) / (2.0 * tf.sin(safe)) - 0.5
    return tf.where(near, count, total) * tf.sqrt(2.0 / tf.maximum(count, 1.0))
