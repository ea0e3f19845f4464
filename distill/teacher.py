"""A trained WaveNet as the density that a student is distilled from, with frozen weights."""

from pathlib import Path

import tensorflow as tf

from distill.frozen import freeze
from distill.losses.kl_divergence import TeacherConditionals
from onepass.foundation.errors import UserError
from onepass.likelihoods.distribution import with_density
from onepass.trained import Trained
from wavenet.model import load
from wavenet.sound_network import Network


class WaveNetDensity:
    """The density of a WaveNet over real numbers; it returns conditionals as `ElementDensities`."""

    def __init__(self, network: Network) -> None:
        likelihood = with_density(network.likelihood)
        if likelihood is None:
            raise ValueError("`network` must have an output with a density, got a softmax.")
        self.network, self.likelihood = network, likelihood

    def condition(
        self,
        frames: tf.Tensor | None,
        speaker: tf.Tensor | None,
        num_samples: int,
        side_frames: int = 0,
    ) -> tf.Tensor | None:
        """Return the condition that `conditionals` takes, without a gradient, or None."""
        config, network = self.network.config, self.network
        if not config.gate_inputs:
            return None
        frames = frames if config.feature_channels else None
        speaker = speaker if config.speakers else None
        return tf.stop_gradient(network.clip_rows(frames, speaker, num_samples, side_frames))

    def conditionals(self, x: tf.Tensor, condition: tf.Tensor | None) -> TeacherConditionals:
        """Return p(x_t | x_<t, condition) for unrounded sounds float32 [batch, time]."""
        return TeacherConditionals(self.likelihood, self.network.of_rows(x, condition))


def load_teacher(path: Path) -> Trained:
    """Load the WaveNet of a run directory or model folder, with every variable frozen."""
    model = load(path)
    if with_density(model.network.likelihood) is None:
        raise UserError(
            f"{path} has a softmax over levels, through which no gradient reaches a student; "
            "distillation needs a teacher with --network.likelihood logistic or gaussian."
        )
    freeze(model.network)
    return model
