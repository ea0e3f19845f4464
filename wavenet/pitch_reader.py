"""F0 and voicing read off mel frames by a small network, where no F0 is given."""

import math

import tensorflow as tf

from likelihoods.initial import Initial

REFERENCE_HZ = 200.0  # that of `log_f0_features`
LOWEST_HZ, HIGHEST_HZ = 60.0, 600.0
WIDTHS = (5, 5, 3)  # frames that each layer reads


class PitchReader(tf.Module):
    """A small convolutional network over frames that says F0 and whether the frame is voiced.

    Args:
      features: channels of a frame.
      channels: of its layers.
    """

    def __init__(self, features: int, initial: Initial, channels: int = 96, name="pitch_reader"):
        super().__init__(name=name)
        inputs = (features, channels, channels)
        gains = (4.0, math.sqrt(2.0), math.sqrt(2.0))
        self.kernels = [
            initial.kernel([width, size, channels], f"kernel_{i}", gain)
            for i, (width, size, gain) in enumerate(zip(WIDTHS, inputs, gains, strict=True))
        ]
        self.biases = [initial.zeros([channels], f"bias_{i}") for i in range(len(WIDTHS))]
        self.head_kernel = initial.kernel([channels, 2], "head_kernel", gain=0.1)
        self.head_bias = initial.zeros([2], "head_bias")

    def __call__(self, frames):
        """log2(F0 / 200 Hz) and the logit of voicing, [batch, frames - 2 side_frames] each.

        frames: float [batch, frames, features], with `side_frames` more on either side.
        """
        hidden = frames
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            sums = tf.nn.conv1d(hidden, tf.cast(kernel, hidden.dtype), 1, "VALID")
            hidden = tf.nn.relu(sums + tf.cast(bias, sums.dtype))
        raw = tf.matmul(hidden, tf.cast(self.head_kernel, hidden.dtype))
        raw += tf.cast(self.head_bias, raw.dtype)
        low, high = (math.log2(hz / REFERENCE_HZ) for hz in (LOWEST_HZ, HIGHEST_HZ))
        return tf.clip_by_value(raw[..., 0], low, high), raw[..., 1]

    @property
    def side_frames(self) -> int:
        """Frames on either side that one frame's answer depends on."""
        return sum(width // 2 for width in WIDTHS)


def pitch_loss(octaves, logit, pitch):
    """How badly F0 is read, []: an error in semitones where voiced, and a cross-entropy.

    The error counts squared up to a semitone and as it is beyond: an octave missed is one mistake.

    Args:
      octaves, logit: [batch, frames], of a `PitchReader`.
      pitch: [batch, frames, 2], log2(F0 / 200 Hz) and 0 or 1, of `log_f0_features`.
    """
    truth, voiced = tf.unstack(pitch, axis=-1)
    off = tf.abs(12.0 * (octaves - truth))
    error = tf.reduce_mean(voiced * tf.minimum(tf.square(off), off))
    doubt = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(voiced, logit))
    return error / tf.maximum(tf.reduce_mean(voiced), 1e-3) + doubt
