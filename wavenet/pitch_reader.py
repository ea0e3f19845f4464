"""F0 and voicing estimated from mel frames by a small network, if F0 is not given."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from foundation.progress import Progress
from likelihoods.initial import Initial
from replicator.training.config import OptimizerConfig
from replicator.training.state import TrainState
from wavenet.data.batch_sampling import ClipSource, batch

REFERENCE_HZ = 200.0  # that of `log_f0_features`
LOWEST_HZ, HIGHEST_HZ = 60.0, 600.0
WIDTHS = (5, 5, 3)  # frames that each layer reads
GAINS = (4.0, math.sqrt(2.0), math.sqrt(2.0))
READER_CLIPS = 16
NEAR_BINS = 4  # on either side of the most probable one, over which F0 is averaged
BLUR_CENTS = 25.0  # deviation of the target over the bins
READER_OPTIMIZER = OptimizerConfig(2e-3, 50, "cosine", average_decay=0.99)


class PitchReader(tf.Module):
    """A small convolutional network over frames that estimates F0 and voicing.

    With bins it is a classifier of F0, like CREPE (Kim et al. 2018, arXiv 1802.06182): if two
    octaves are possible, it chooses one of them instead of a value in between.

    Args:
      features: number of channels of a frame.
      channels: number of channels of a hidden layer.
      bins: number of classes of F0 between 60 and 600 Hz, evenly spaced on a logarithmic scale; 0:
        F0 is a single number, trained by its error.
    """

    def __init__(
        self,
        features: int,
        initial: Initial,
        channels: int = 96,
        bins: int = 0,
        name: str = "pitch_reader",
    ) -> None:
        super().__init__(name=name)
        self.bins, inputs = bins, (features, channels, channels)
        self.kernels = [
            initial.kernel([width, size, channels], f"kernel_{i}", gain)
            for i, (width, size, gain) in enumerate(zip(WIDTHS, inputs, GAINS, strict=True))
        ]
        self.biases = [initial.zeros([channels], f"bias_{i}") for i in range(len(WIDTHS))]
        outputs = bins + 1 if bins else 2
        self.head_kernel = initial.kernel([channels, outputs], "head_kernel", gain=0.1)
        self.head_bias = initial.zeros([outputs], "head_bias")

    def __call__(self, frames: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return log2(F0 / 200 Hz) and the logit of voicing, [batch, frames - 2 side_frames]."""
        raw = self._outputs(frames)
        if self.bins:
            return _likeliest(raw[..., :-1]), raw[..., -1]
        low, high = _octaves_of(LOWEST_HZ), _octaves_of(HIGHEST_HZ)
        return tf.clip_by_value(raw[..., 0], low, high), raw[..., 1]

    def loss(self, frames: tf.Tensor, pitch: tf.Tensor) -> tf.Tensor:
        """Return the loss of F0 and voicing, [], over the frames that get an estimate."""
        if self.bins:
            raw = self._outputs(frames)
            return class_loss(raw[..., :-1], raw[..., -1], pitch)
        octaves, logit = self(frames)
        return pitch_loss(octaves, logit, pitch)

    def _outputs(self, frames: tf.Tensor) -> tf.Tensor:
        hidden = frames
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            sums = tf.nn.conv1d(hidden, tf.cast(kernel, hidden.dtype), 1, "VALID")
            hidden = tf.nn.relu(sums + tf.cast(bias, sums.dtype))
        raw = tf.matmul(hidden, tf.cast(self.head_kernel, hidden.dtype))
        return raw + tf.cast(self.head_bias, raw.dtype)

    @property
    def side_frames(self) -> int:
        """Frames on either side that one frame's estimate depends on."""
        return sum(width // 2 for width in WIDTHS)


def _octaves_of(hz: float) -> float:
    return math.log2(hz / REFERENCE_HZ)


def _centres(bins: int, dtype: tf.DType) -> tf.Tensor:
    """Return log2(F0 / 200 Hz) of each bin, [bins]."""
    low, high = _octaves_of(LOWEST_HZ), _octaves_of(HIGHEST_HZ)
    return tf.linspace(tf.constant(low, dtype), tf.constant(high, dtype), bins)


def _likeliest(logits: tf.Tensor) -> tf.Tensor:
    """Return log2(F0 / 200 Hz), [batch, frames]: the mean around the most probable bin."""
    bins, dtype = logits.shape[-1], logits.dtype
    best = tf.argmax(logits, -1, tf.int32)[..., tf.newaxis]
    # Only near bins count: a mean over two octaves would be the pitch of neither.
    near = tf.cast(tf.abs(tf.range(bins) - best) <= NEAR_BINS, dtype)
    weights = tf.nn.softmax(logits) * near
    return tf.reduce_sum(weights * _centres(bins, dtype), -1) / tf.reduce_sum(weights, -1)


def class_loss(logits: tf.Tensor, logit: tf.Tensor, pitch: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of F0's bins in voiced frames, plus that of voicing, [].

    The target is a normal distribution around F0 over the bins, 25 cents wide. `logits` are [batch,
    frames, bins]; `logit`, that of voicing, is [batch, frames]; `pitch`, from `log_f0_features`, is
    [batch, frames, 2].
    """
    truth, voiced = tf.unstack(pitch, axis=-1)
    cents = 1200.0 * (truth[..., tf.newaxis] - _centres(logits.shape[-1], logits.dtype))
    target = tf.nn.softmax(-0.5 * tf.square(cents / BLUR_CENTS))
    error = tf.nn.softmax_cross_entropy_with_logits(target, logits)
    doubt = tf.nn.sigmoid_cross_entropy_with_logits(voiced, logit)
    # Unvoiced frames have no F0; a batch without a voiced frame must not divide by zero.
    share = tf.maximum(tf.reduce_mean(voiced), 1e-3)
    return tf.reduce_mean(voiced * error) / share + tf.reduce_mean(doubt)


def pitch_loss(octaves: tf.Tensor, logit: tf.Tensor, pitch: tf.Tensor) -> tf.Tensor:
    """Return F0's error in semitones in voiced frames, plus a cross-entropy of voicing, [].

    The error is squared up to a semitone and linear beyond, so that a missed octave is one mistake.
    `octaves` and `logit`, [batch, frames], are a reader's estimates; `pitch` has the true octaves
    and voicing, [batch, frames, 2].
    """
    truth, voiced = tf.unstack(pitch, axis=-1)
    off = tf.abs(12.0 * (octaves - truth))
    error = tf.reduce_mean(voiced * tf.minimum(tf.square(off), off))
    doubt = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(voiced, logit))
    return error / tf.maximum(tf.reduce_mean(voiced), 1e-3) + doubt


def train_pitch_reader(
    reader: PitchReader,
    source: ClipSource,
    steps: int,
    seed: int,
    prepare: Callable[[tf.Tensor], tf.Tensor],
) -> float:
    """Train the reader on F0 and voicing of clips of frames, and return the last loss.

    The last two channels of the source's frames are F0 and voicing; `prepare` turns the frames into
    the reader's input.
    """
    state = TrainState(reader, READER_OPTIMIZER, steps)
    side = reader.side_frames

    @tf.function(autograph=False)
    def update(frames: tf.Tensor) -> tf.Tensor:
        def loss(_: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            return reader.loss(prepare(frames), frames[:, side : frames.shape[1] - side, -2:]), {}

        values, metrics = state.update(loss, {})
        state.assign(values)
        return metrics["loss"]

    value = math.inf
    with Progress(steps, "learning to read F0", "step") as progress:
        for step in range(steps):
            value = float(update(batch(source, seed, step, READER_CLIPS)["frames"]))
            progress.advance(loss=value)
    state.use_average()
    return value
