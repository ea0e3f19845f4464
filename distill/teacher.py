"""Teachers: their weights, frozen and digested, and a trained WaveNet as the density of one."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from distill.losses.divergence import TeacherConditionals
from onepass.foundation.rules import UserError
from onepass.likelihoods.distribution import with_density
from onepass.trained import Trained

if TYPE_CHECKING:
    from wavenet.network import Network

Module = TypeVar("Module", bound=tf.Module)


def freeze(network: tf.Module) -> None:
    """Make every variable of a network untrainable, so that no gradient tape watches it."""
    for variable in network.variables:
        variable._trainable = False  # there is no public way after creation


def frozen_copy(network: Module, make: Callable[[], Module]) -> Module:
    """Return a copy of a network with its own variables, which no gradient tape watches.

    `make` returns an untrained network of the same kind. The variables are created at the call; in
    the scope of a Replicator, every device gets them.
    """

    def make_frozen(make: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        return make(**{**options, "trainable": False})

    with tf.variable_creator_scope(make_frozen):
        copy = make()
    for variable, original in zip(copy.variables, network.variables, strict=True):
        variable.assign(tf.convert_to_tensor(original))
    return copy


def digest(network: tf.Module) -> str:
    """Return a digest of the weights as 16 hexadecimal digits."""
    code = hashlib.blake2b(digest_size=8)
    for variable in network.variables:
        code.update(variable.numpy().tobytes())
    return code.hexdigest()


class WaveNetDensity:
    """The density of a WaveNet over real numbers; it returns conditionals as `ElementDensities`."""

    def __init__(self, network: "Network") -> None:
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
    from wavenet.model import load  # students of images have no WaveNet

    model = load(path)
    if with_density(model.network.likelihood) is None:
        raise UserError(
            f"{path} has a softmax over levels, through which no gradient reaches a student; "
            "distillation needs a teacher with --network.likelihood logistic or gaussian."
        )
    freeze(model.network)
    return model
