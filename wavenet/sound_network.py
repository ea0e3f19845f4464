"""The interface of a network of sound for samplers, training and distillation."""

import functools
import math
from typing import Any

import tensorflow as tf

from likelihoods.capabilities import with_scales
from likelihoods.codec import Codec
from likelihoods.distribution import Distribution
from likelihoods.initial import Initial
from wavenet.config import WaveNetConfig


class Network(tf.Module):
    """A causal network of sound; `WaveNet` and `VocoderWaveNet` are two.

    Attributes:
      config: its sizes. codec: from samples to levels.
      likelihood: the distribution of a level, see `likelihoods.distribution`.
      dtype, front_dtype: of the layers, and of what reads and makes the wave.
      stack: the residual layers.
      conditioner: what standardises mel frames and reads F0 off them; None: nothing does.
      upsampler: of frames, None where a conditioner or nothing reads them.
      context_stack: a condition from blocks of past sound, or None.
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
        """Return another network of the same configuration, with untrained weights."""
        raise NotImplementedError

    def inputs(self, levels):
        """Return what the network reads for integer levels [...]."""
        raise NotImplementedError

    def condition(self, frames=None, speaker=None, num_samples: int | None = None):
        """Return the condition of every sample [batch, time, channels], or None.

        Args:
          frames: [batch, frames, feature_channels], one frame every `hop_samples` samples.
          speaker: int32 [batch].
          num_samples: length in samples; by default frames * hop_samples.
        """
        raise NotImplementedError

    def __call__(self, inputs, condition):
        """Return the parameters of every sample [batch, time, parameters] given those before it.

        Args:
          inputs: [batch, time] from `inputs`; the network shifts them by one itself.
          condition: [batch, time, channels] from `condition`, or None.
        """
        raise NotImplementedError

    def training_parameters(self, inputs, frames, speaker):
        """Return the parameters of every sample of training clips, [batch, time, parameters].

        Args:
          inputs: as for a call.
          frames: with as many neighbours on either side as the network needs.
          speaker: int32 [batch] or None.
        """
        raise NotImplementedError

    def clip_rows(self, frames, speaker, num_samples: int, side_frames: int = 0):
        """Return the condition at the network's own rate, [batch, rows, channels].

        Args:
          frames: as for `condition`.
          speaker: as for `condition`.
          num_samples: that are asked for.
          side_frames: of `frames` on either side that are neighbours only.
        """
        raise NotImplementedError

    def of_rows(self, inputs, rows):
        """Return the parameters of a call, given a condition from `clip_rows`."""
        raise NotImplementedError

    def resumed(self, inputs, condition, pasts=None, skipped: int = 0):
        """Return the parameters of a call, and the input of every layer [batch, steps, residual].

        Args:
          inputs: as for a call.
          condition: see `inputs`.
          pasts: the earlier inputs of every layer; None: zeros.
          skipped: inputs that come before those whose parameters are returned.
        """
        raise NotImplementedError

    @functools.cached_property
    def samplers(self) -> dict[str, Any]:
        """The samplers that were compiled for it, by backend; they last as long as it does."""
        return {}


def initial_output(likelihood: Distribution, reach: float) -> tf.Tensor:
    """Return the bias that the output starts from, [parameters]: means and scales, or zeros.

    `reach` is the distance of means from 0, of the amplified full scale.
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


def speaker_row(config: WaveNetConfig, embedding: tf.Variable | None, speaker):
    """Return what the gates read of a speaker int32 [batch], [batch, channels]."""
    row = tf.one_hot(speaker, config.speakers)
    return row if embedding is None else tf.matmul(row, embedding)


def check_condition(config, frames, speaker) -> None:
    """Raise ValueError for frames or a speaker that a network does not read."""
    for name, value, field in (
        ("frames", frames, "feature_channels"),
        ("speaker", speaker, "speakers"),
    ):
        count = getattr(config, field)
        if (value is None) != (count == 0):
            needed = "given" if count else "None"
            raise ValueError(f"`{name}` must be {needed} for a network with {field}={count}.")
    channels = config.feature_channels
    if channels and frames.shape[-1] != channels:
        raise ValueError(f"`frames` must have {channels} channels, got {frames.shape[-1]}.")
