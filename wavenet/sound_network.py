"""The interface of a network of sound for samplers, training and distillation."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autoregressive.samplers.compiled import Compiled
from likelihoods.capabilities import with_scales
from likelihoods.codec import Codec
from likelihoods.distribution import Distribution
from likelihoods.initial import Initial
from wavenet.config import WaveNetConfig


class Network(tf.Module):
    """A causal network of sound, such as `WaveNet` and `VocoderWaveNet`.

    Attributes:
      config: the sizes of the network.
      codec: converts samples to levels and back.
      likelihood: the distribution of a level, a `likelihoods.distribution.Distribution`.
      dtype: type in which the residual layers compute.
      front_dtype: type in which the wave is read and the parameters are computed.
      stack: the residual layers.
      conditioner: standardises mel frames and estimates F0 from them; None: the network has none.
      upsampler: brings frames to the rate of the samples; None if a conditioner reads the frames,
        or there are no frames.
      context_stack: computes a condition from blocks of past sound; None if the network has none.
    """

    config: WaveNetConfig
    codec: Codec
    likelihood: Any
    dtype: tf.DType
    front_dtype: tf.DType
    stack: Any
    conditioner: Any = None
    upsampler: Any = None
    context_stack: Any = None

    def untrained(self) -> "Network":
        """Return a new network with the same configuration and untrained weights."""
        raise NotImplementedError

    def inputs(self, levels: tf.Tensor) -> tf.Tensor:
        """Return the network's input for integer levels [...]: the levels, or scaled floats."""
        raise NotImplementedError

    def condition(
        self,
        frames: tf.Tensor | None = None,
        speaker: tf.Tensor | None = None,
        num_samples: int | None = None,
    ) -> tf.Tensor | None:
        """Return the condition of every sample [batch, time, channels], or None.

        Args:
          frames: [batch, frames, feature_channels], one frame every `hop_samples` samples.
          speaker: int32 [batch].
          num_samples: length in samples; by default frames * hop_samples.
        """
        raise NotImplementedError

    def __call__(self, inputs: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        """Return the parameters of every sample [batch, time, parameters] given those before it.

        Args:
          inputs: [batch, time] from `inputs`; the network shifts them by one itself.
          condition: [batch, time, channels] from `condition`, or None.
        """
        raise NotImplementedError

    def training_parameters(
        self, inputs: tf.Tensor, frames: tf.Tensor | None, speaker: tf.Tensor | None
    ) -> tf.Tensor:
        """Return the parameters of every sample of training clips, [batch, time, parameters].

        Args:
          inputs: [batch, time] from `inputs`, not shifted.
          frames: [batch, frames, feature_channels], with as many neighbours on either side of the
            clip as the network needs; None for a network that reads no frames.
          speaker: int32 [batch], or None.
        """
        raise NotImplementedError

    def clip_rows(
        self,
        frames: tf.Tensor | None,
        speaker: tf.Tensor | None,
        num_samples: int,
        side_frames: int = 0,
    ) -> tf.Tensor | None:
        """Return the condition at the network's own rate, [batch, rows, channels].

        Args:
          frames: [batch, frames, feature_channels], one frame every `hop_samples` samples, or None.
          speaker: int32 [batch], or None.
          num_samples: number of samples that the condition is for.
          side_frames: number of `frames` on either side that serve only as context.
        """
        raise NotImplementedError

    def of_rows(self, inputs: tf.Tensor, rows: tf.Tensor | None) -> tf.Tensor:
        """Return the parameters of a call, given a condition from `clip_rows`."""
        raise NotImplementedError

    def resumed(
        self,
        inputs: tf.Tensor,
        condition: tf.Tensor | None,
        pasts: Sequence[tf.Tensor] | None = None,
        skipped: int = 0,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the parameters of a call, and the input of every layer [batch, steps, residual].

        Args:
          inputs: [batch, time] from `inputs`, not shifted.
          condition: [batch, time, channels] from `condition`, or None.
          pasts: the earlier inputs of every layer, [batch, steps, residual] each; None: zeros.
          skipped: number of inputs before those whose parameters are returned.
        """
        raise NotImplementedError

    @functools.cached_property
    def compiled(self) -> Compiled:
        """The samplers that were compiled for it, by name; they last as long as it does."""
        return Compiled()


def initial_output(likelihood: Distribution, reach: float) -> tf.Tensor:
    """Return the bias that the output starts from, [parameters]: means and scales, or zeros.

    `reach` is how far the means lie from 0, as a share of the amplified full scale.
    """
    located = with_scales(likelihood)
    if located is None:
        return tf.zeros([likelihood.num_parameters])
    return located.initial_parameters(reach)


def initial_embedding(config: WaveNetConfig, initial: Initial) -> tf.Variable | None:
    """Return the learned embedding of speakers [speakers, channels], or None."""
    if not config.speakers or not config.speaker_channels:
        return None
    shape, gain = [config.speakers, config.speaker_channels], math.sqrt(config.speakers)
    return initial.kernel(shape, "speaker_embedding", gain)


def speaker_row(
    config: WaveNetConfig, embedding: tf.Variable | None, speaker: tf.Tensor
) -> tf.Tensor:
    """Return the channels of the gate condition that encode the speaker, [batch, channels].

    It is the learned embedding of the speaker int32 [batch], or a one-hot vector without one.
    """
    row = tf.one_hot(speaker, config.speakers)
    return row if embedding is None else tf.matmul(row, embedding)


def check_condition(config: Any, frames: tf.Tensor | None, speaker: tf.Tensor | None) -> None:
    """Raise ValueError unless a network gets the frames and the speaker that it reads.

    The error covers an input that is missing or superfluous, and a wrong number of channels.
    """
    for name, value, field in (
        ("frames", frames, "feature_channels"),
        ("speaker", speaker, "speakers"),
    ):
        count = getattr(config, field)
        if (value is None) != (count == 0):
            needed = "given" if count else "None"
            raise ValueError(f"`{name}` must be {needed} for a network with {field}={count}.")
    channels = config.feature_channels
    if frames is not None and frames.shape[-1] != channels:
        raise ValueError(f"`frames` must have {channels} channels, got {frames.shape[-1]}.")
