"""Learned upsampling of conditioning frames to the sample rate."""

from typing import Any

import tensorflow as tf

from onepass.likelihoods.initial import Initial

FRAME_GAIN = 4.0  # frames are between 0 (silence) and 1, but vary by only about a quarter of that


class FrameUpsampler(tf.Module):
    """A convolution over frames, followed by transposed convolutions up to the sample rate.

    This is "y = f(h), a transposed convolutional network" (WaveNet, section 2.5). Each transposed
    convolution has stride s and width 3 s, is initialised to linear interpolation, and is computed
    as one matrix product over three neighbouring frames. `config` is a WaveNet's or a student's.
    """

    def __init__(self, config: Any, initial: Initial, name: str = "upsampler") -> None:
        super().__init__(name=name)
        channels = config.condition_channels
        self.frame_width = config.frame_width
        self.frame_kernel = initial.kernel(
            [config.frame_width, config.feature_channels, channels], "frame_kernel", FRAME_GAIN
        )
        self.frame_bias = initial.zeros([channels], "frame_bias")
        self.factors = config.upsample_factors
        self.kernels = [
            tf.Variable(_interpolation(factor, channels), name=f"kernel_{factor}")
            for factor in self.factors
        ]

    def __call__(self, frames: tf.Tensor) -> tf.Tensor:
        """Return the upsampled condition, [batch, frames * hop, channels]."""
        side = self.frame_width // 2
        dtype = frames.dtype
        padded = tf.pad(frames, [[0, 0], [side, side], [0, 0]])
        hidden = tf.nn.conv1d(padded, tf.cast(self.frame_kernel, dtype), 1, "VALID")
        hidden = tf.nn.relu(hidden + tf.cast(self.frame_bias, dtype))
        for factor, kernel in zip(self.factors, self.kernels, strict=True):
            hidden = upsample(hidden, tf.cast(kernel, dtype), factor)
        return hidden


def upsample(frames: tf.Tensor, kernel: tf.Tensor, factor: int) -> tf.Tensor:
    """Upsample frames [batch, frames, channels] to [batch, frames * factor, channels].

    The rows of `kernel` [3 * channels, factor * channels] belong to the previous, current and next
    frame, the columns to the outputs of the current frame. Edge frames are repeated as padding.
    """
    before = tf.concat([frames[:, :1], frames[:, :-1]], 1)
    after = tf.concat([frames[:, 1:], frames[:, -1:]], 1)
    out = tf.matmul(tf.concat([before, frames, after], -1), kernel)
    batch, count, channels = tf.shape(frames)[0], tf.shape(frames)[1], frames.shape[-1]
    return tf.reshape(out, [batch, count * factor, channels])


def interpolate_frames(frames: tf.Tensor, count: int) -> tf.Tensor:
    """Interpolate linearly between frame centres, to [batch, (frames - 2) * count, channels]."""
    before, here, after = (share[:, None] for share in _shares(count, frames.dtype))
    rows = (
        frames[:, :-2, None] * before + frames[:, 1:-1, None] * here + frames[:, 2:, None] * after
    )
    return tf.reshape(rows, [tf.shape(frames)[0], -1, frames.shape[-1]])


def _shares(count: int, dtype: tf.DType = tf.float32) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    offset = (tf.range(count, dtype=dtype) + 0.5) / count - 0.5
    before, after = tf.nn.relu(-offset), tf.nn.relu(offset)
    return before, 1.0 - before - after, after


def _interpolation(factor: int, channels: int) -> tf.Tensor:
    kernel = tf.einsum("jf,cd->jcfd", tf.stack(_shares(factor)), tf.eye(channels))
    return tf.reshape(kernel, [3 * channels, factor * channels])
