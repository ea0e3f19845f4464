"""The interface of audio networks for samplers, training and distillation."""

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import Distribution, with_scales
from onepass.likelihoods.initial import Initial
from onepass.networks.conditions import Specs, check_specs
from onepass.samplers.compiled import Compiled
from wavenet.config import WaveNetConfig

# (time, remainder, newest input, state) -> parameters and state; see `Network.stepper`.
OwnStep = Callable[[Any, int, tf.Tensor, dict[str, Any]], tuple[tf.Tensor, dict[str, Any]]]


class Network(tf.Module):
    """A causal audio network: the base class of `WaveNet` and `VocoderWaveNet`.

    Attributes:
      front_dtype: floating-point type of the waveform and of the output parameters.
      conditioner: computes the condition from mel frames in a vocoder, else None.
      upsampler: upsamples frames to the sample rate; None if there are no frames or a conditioner
        reads them.
      context_stack: computes a condition from blocks of past samples, or None.
      silence: the network's input before the first sample.
      period: samples after which `renew` computes a part of the state; 0: it never does.
      renew_samples: number of past samples that `renew` reads.
      is_renewed: whether the caller of a step does so, with the results of `renew`.
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
    silence: int = 0
    period: int = 0
    renew_samples: int = 0
    is_renewed: bool = False

    def copy_untrained(self) -> "Network":
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
          num_samples: length in samples; None: frames * hop_samples.
        """
        raise NotImplementedError

    def __call__(self, inputs: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        """Return each sample's parameters given those before it; `inputs` are not shifted."""
        raise NotImplementedError

    def training_parameters(
        self, inputs: tf.Tensor, frames: tf.Tensor | None, speaker: tf.Tensor | None
    ) -> tf.Tensor:
        """Return the parameters of every sample of training clips, [batch, time, parameters].

        The frames, if the network reads them, include the neighbouring ones that it needs on either
        side of the clip.
        """
        raise NotImplementedError

    def clip_rows(
        self,
        frames: tf.Tensor | None,
        speaker: tf.Tensor | None,
        num_samples: int,
        side_frames: int = 0,
    ) -> tf.Tensor | None:
        """Return the condition [batch, rows, channels] at its own rate, without `side_frames`."""
        raise NotImplementedError

    def of_rows(self, inputs: tf.Tensor, rows: tf.Tensor | None) -> tf.Tensor:
        """Return each sample's parameters, given a condition from `clip_rows`."""
        raise NotImplementedError

    def initial_state(self, batch: int) -> dict[str, Any]:
        """Return the state of `stepper` and `chunk` before the first sample: silence."""
        raise NotImplementedError

    def stepper(self, condition: tf.Tensor | None) -> OwnStep:
        """Return the step for samples with this condition, [batch, time, channels] or None.

        It is a function of the time step, that step modulo `config.bunch_samples` as a Python
        integer, the network's input before it [batch, 1], and the state. It returns the sample's
        parameters [batch, 1, parameters], and the next state.
        """
        raise NotImplementedError

    def chunk(
        self, inputs: tf.Tensor, state: dict[str, Any], condition: tf.Tensor | None
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Return the parameters of the next n samples from one pass, and the state after them.

        Args:
          inputs: the network's inputs before each sample, [batch, n], static whole bunches.
          condition: that of these samples, [batch, n, channels], or None.
        """
        raise NotImplementedError

    def renew(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the entries of the state for the next `period` samples, by name.

        Args:
          inputs: the network's inputs for the samples before them, [batch, renew_samples].
        """
        raise NotImplementedError

    @functools.cached_property
    def compiled(self) -> Compiled:
        """A cache of the samplers compiled for this network, by name."""
        return Compiled()


def initial_output(likelihood: Distribution, reach: float) -> tf.Tensor:
    """Return the initial bias of the output layer, [parameters].

    It is zero for distributions without means and scales. Otherwise the initial means are in
    [-reach, reach], in units of the amplified waveform.
    """
    located = with_scales(likelihood)
    if located is None:
        return tf.zeros([likelihood.num_parameters])
    return located.initial_parameters(reach)


def initial_embedding(config: WaveNetConfig, initial: Initial) -> tf.Variable | None:
    """Return an initial speaker embedding [speakers, channels], or None if none is configured."""
    if not config.speakers or not config.speaker_channels:
        return None
    shape, gain = [config.speakers, config.speaker_channels], math.sqrt(config.speakers)
    return initial.kernel(shape, "speaker_embedding", gain)


def speaker_row(
    config: WaveNetConfig, embedding: tf.Variable | None, speaker: tf.Tensor
) -> tf.Tensor:
    """Return the speakers' rows [batch, channels] of an embedding or, without it, one-hot ones."""
    row = tf.one_hot(speaker, config.speakers)
    return row if embedding is None else tf.matmul(row, embedding)


def check_condition(config: Any, frames: tf.Tensor | None, speaker: tf.Tensor | None) -> None:
    """Raise ValueError for frames or a speaker that do not fit a WaveNet's or a student's specs."""
    given = {"frames": frames, "speaker": speaker}
    specs: Specs = {}
    if config.feature_channels:
        specs["frames"] = tf.TensorSpec([None, None, config.feature_channels])
    if config.speakers:
        specs["speaker"] = tf.TensorSpec([None], tf.int32)
    counts = {"speaker": config.speakers}
    check_specs(specs, {n: x for n, x in given.items() if x is not None}, counts)
