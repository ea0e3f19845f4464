"""A small network that estimates F0 and voicing from mel frames."""

import math
from collections.abc import Callable

import tensorflow as tf

from onepass.foundation.progress import Progress
from onepass.likelihoods.initial import Initial
from onepass.replicator.training.config import OptimizerConfig
from wavenet.data.batch_sampling import ClipSource, batch

REFERENCE_HZ = 200.0  # as in `log_f0_features`
LOWEST_HZ, HIGHEST_HZ = 60.0, 600.0
WIDTHS = (5, 5, 3)  # kernel width of each layer, in frames
GAINS = (4.0, math.sqrt(2.0), math.sqrt(2.0))
READER_CLIPS = 16
NEAR_BINS = 4  # F0 is averaged over this many bins on either side of the most probable one
BLUR_CENTS = 25.0  # standard deviation of the target distribution over the bins
READER_OPTIMIZER = OptimizerConfig(2e-3, 50, "cosine", average_decay=0.99)


class PitchReader(tf.Module):
    """A small convolutional network that estimates F0 and voicing from frames.

    With `bins`, evenly spaced between 60 and 600 Hz on a logarithmic scale, it classifies F0, like
    CREPE (Kim et al. 2018, arXiv 1802.06182): if two octaves are plausible, it chooses one of them
    instead of a value in between. With 0, F0 is regressed.
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
        """Return log2(F0 / 200 Hz) and voicing's logit, [batch, frames - 2 side_frames] each."""
        raw = self._outputs(frames)
        if self.bins:
            return _likeliest(raw[..., :-1]), raw[..., -1]
        low, high = _octaves_of(LOWEST_HZ), _octaves_of(HIGHEST_HZ)
        return tf.clip_by_value(raw[..., 0], low, high), raw[..., 1]

    def loss(self, frames: tf.Tensor, pitch: tf.Tensor) -> tf.Tensor:
        """Return the scalar loss for the true `pitch`, [batch, frames - 2 side_frames, 2]."""
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
        """Number of neighbouring frames on either side that an estimate depends on."""
        return sum(width // 2 for width in WIDTHS)


def _octaves_of(hz: float) -> float:
    return math.log2(hz / REFERENCE_HZ)


def _centres(bins: int, dtype: tf.DType) -> tf.Tensor:
    low, high = _octaves_of(LOWEST_HZ), _octaves_of(HIGHEST_HZ)
    return tf.linspace(tf.constant(low, dtype), tf.constant(high, dtype), bins)


def _likeliest(logits: tf.Tensor) -> tf.Tensor:
    bins, dtype = logits.shape[-1], logits.dtype
    best = tf.argmax(logits, -1, tf.int32)[..., tf.newaxis]
    # Average only nearby bins: a mean over two possible octaves would be neither of them.
    near = tf.cast(tf.abs(tf.range(bins) - best) <= NEAR_BINS, dtype)
    weights = tf.nn.softmax(logits) * near
    return tf.reduce_sum(weights * _centres(bins, dtype), -1) / tf.reduce_sum(weights, -1)


def class_loss(logits: tf.Tensor, logit: tf.Tensor, pitch: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of F0 over voiced frames plus the cross-entropy of voicing.

    The target over the bins is a normal distribution around F0 with a deviation of `BLUR_CENTS`.
    `logits` of the bins are [batch, frames, bins]; the `logit` of voicing is [batch, frames];
    `pitch` is the true F0 and voicing from `log_f0_features`, [batch, frames, 2].
    """
    truth, voiced = tf.unstack(pitch, axis=-1)
    cents = 1200.0 * (truth[..., tf.newaxis] - _centres(logits.shape[-1], logits.dtype))
    target = tf.nn.softmax(-0.5 * tf.square(cents / BLUR_CENTS))
    error = tf.nn.softmax_cross_entropy_with_logits(target, logits)
    doubt = tf.nn.sigmoid_cross_entropy_with_logits(voiced, logit)
    # Unvoiced frames have no F0; the minimum avoids a division by zero if no frame is voiced.
    share = tf.maximum(tf.reduce_mean(voiced), 1e-3)
    return tf.reduce_mean(voiced * error) / share + tf.reduce_mean(doubt)


def pitch_loss(octaves: tf.Tensor, logit: tf.Tensor, pitch: tf.Tensor) -> tf.Tensor:
    """Return the F0 error in semitones over voiced frames plus the cross-entropy of voicing.

    The error is squared below one semitone and linear above, so that octave errors do not dominate.
    Shapes are as in `class_loss`.
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
    """Train the reader on random clips of frames and return the last loss.

    The last two channels of the source's frames are the true F0 and voicing; `prepare` converts
    frames to the reader's input. The reader ends with averaged weights.
    """
    # A trained reader needs no optimiser.
    from onepass.replicator.training.state import TrainState
    from onepass.replicator.training.step import compile_step

    def loss(clips: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        frames, side = clips["frames"], reader.side_frames
        return reader.loss(prepare(frames), frames[:, side : frames.shape[1] - side, -2:]), {}

    state = TrainState(reader, READER_OPTIMIZER, steps)
    update, value = compile_step(state, loss, jit_compile=False), math.inf
    with Progress(steps, "learning to read F0", "step") as progress:
        for step in range(steps):
            frames = batch(source, seed, step, READER_CLIPS)["frames"]
            value = float(update({"frames": frames})["loss"])
            progress.advance(loss=value)
    state.use_average()
    return value
