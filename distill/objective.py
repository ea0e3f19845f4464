"""The loss of a distillation step: the terms that are switched on, each with its value by name."""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from distill import losses
from distill.excitation import pitch_loss
from distill.flows import Flowed
from distill.perceptual import feature_loss, style_loss
from distill.power import magnitude_loss, multi_loss, squared_loss
from distill.presets import LossConfig
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity
from distill.units import UnitClassifier
from likelihoods import Gaussian
from likelihoods import noise as position_noise
from wavenet.features import MelConvention

Terms = dict[str, tuple[float, tf.Tensor]]
SpectralLoss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# Numbers of the seeds that are folded out of a step's.
SOUND, DRAWS, PHASE = 0, 1, 2
DB_PER_NEPER = 20.0 / math.log(10.0)


class Objective:
    """Called with a batch of clips; gives the loss, [], and the terms' values.

    Args:
      student, teacher: only the student's weights get a gradient.
      config: which terms.
      seed: of the noise, which differs from step to step.
      step: int32 variable, the updates made.
      classifier, mel: what the perceptual terms need.
    """

    def __init__(
        self,
        student: ParallelWaveNet,
        teacher: WaveNetDensity,
        config: LossConfig,
        seed: int,
        step: tf.Variable,
        classifier: UnitClassifier | None = None,
        mel: MelConvention | None = None,
    ):
        self.student, self.teacher, self.config = student, teacher, config
        self._spectral = _spectral_losses(config, classifier, mel)
        self._seed, self._step = seed, step

    def __call__(self, batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The weighted sum of the terms, and their values.

        Args:
          batch: of `wavenet.data.clips`: waveform, mask, speaker, and frames, of which the last
            two channels are the F0 features where the student has a draft.
        """
        seed = position_noise.fold_in(self._seed, self._step)
        drawn = self._draw(batch, seed)
        terms: Terms = {}
        if self.config.kl:
            terms |= self._divergence(drawn, batch, seed)
        terms |= self._compare(drawn.output, batch["waveform"])
        drafter = self.student.drafter
        if drafter is not None:
            # Taught beforehand: its error is logged, its gradient is zero, its weights stay.
            value = pitch_loss(drafter.reader, self.frames(batch), batch["frames"][..., -2:])
            terms["pitch"] = (0.0, value)
        loss = tf.add_n([weight * value for weight, value in terms.values()])
        values = {name: value for name, (_, value) in terms.items()}
        return loss, values | {"level_db": _level_db(drawn.output, batch["waveform"])}

    def frames(self, batch):
        """What teacher and student are conditioned on, or None."""
        channels = self.student.config.feature_channels
        return batch["frames"][..., :channels] if channels else None

    def _draw(self, batch, seed) -> Flowed:
        rows, samples = _shape(batch)
        names = tf.range(rows)
        # The phase of the voice means nothing, so it must not be learnt.
        phase = position_noise.uniform(position_noise.fold_in(seed, PHASE), names, 0, 1)[:, 0, 0]
        condition, _ = self.student.condition(
            self.frames(batch), self._speaker(batch), samples, tf.cast(phase, tf.float64)
        )
        noise = self.student.noise(position_noise.fold_in(seed, SOUND), names, 0, samples)
        return self.student.sample(noise, condition)

    def _speaker(self, batch):
        return batch["speaker"] if self.student.config.speakers else None

    def _divergence(self, drawn: Flowed, batch, seed) -> Terms:
        config, kind, mask = self.config, self.student.noise_kind, batch["mask"]
        rows, samples = _shape(batch)
        condition = self.teacher.condition(self.frames(batch), self._speaker(batch), samples)
        conditionals = self.teacher.conditionals(drawn.output, condition)
        if kind == "normal" and isinstance(conditionals.likelihood, Gaussian):
            mean, log_scale = conditionals.likelihood.split(conditionals.parameters)
            exact = losses.gaussian_divergence(drawn, mean, log_scale, config.regularisation)
            own = losses.mean_of(losses.entropy(drawn, kind), mask)
            return {"kl": (config.kl, losses.mean_of(exact, mask)), "entropy": (0.0, own)}
        key = position_noise.fold_in(seed, DRAWS)
        draws = losses.standard_draws(kind, key, rows, samples, config.draws)
        kl, cross, own = losses.divergence(conditionals, drawn, draws, kind, mask)
        terms = {"kl": (config.kl, kl), "cross_entropy": (0.0, cross), "entropy": (0.0, own)}
        if config.contrastive and condition is not None:
            other = self.teacher.conditionals(drawn.output, tf.roll(condition, 1, 0))
            apart = losses.contrastive(other, drawn, draws, kind, mask)
            terms["contrastive"] = (-config.contrastive * config.kl, apart)
        return terms

    def _compare(self, sound, recorded) -> Terms:
        return {
            name: (weight, loss(sound, recorded)) for name, (weight, loss) in self._spectral.items()
        }


def _spectral_losses(
    config: LossConfig, classifier: UnitClassifier | None, mel: MelConvention | None
) -> dict[str, tuple[float, SpectralLoss]]:
    """Weight and function, of a sound and a recording, of each spectral term that is on."""
    losses_: dict[str, SpectralLoss] = {
        "squared": squared_loss,
        "magnitude": magnitude_loss,
        "multi": multi_loss,
    }
    if config.feature or config.style:
        if classifier is None or mel is None:
            raise ValueError("`classifier` and `mel` must be given for the perceptual terms.")
        losses_["feature"] = functools.partial(feature_loss, classifier, mel)
        losses_["style"] = functools.partial(style_loss, classifier, mel)
    weights = {name: float(getattr(config, name)) for name in losses_}
    return {name: (weights[name], loss) for name, loss in losses_.items() if weights[name]}


def _shape(batch) -> tuple[int, int]:
    rows, samples = batch["waveform"].shape
    return rows, samples


def _level_db(sound, recorded):
    """The level of the sound over that of the recording, in dB, []."""
    ratio = (tf.reduce_mean(tf.square(sound)) + 1e-12) / (
        tf.reduce_mean(tf.square(recorded)) + 1e-12
    )
    return 0.5 * DB_PER_NEPER * tf.math.log(ratio)
