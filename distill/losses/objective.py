"""The loss of a distillation step: the terms that are switched on, each with its value by name."""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from distill.losses import kl_divergence
from distill.losses.discriminators import Discriminators
from distill.losses.perceptual import PerceptualLoss, gram
from distill.losses.power import magnitude_loss, multi_loss, squared_loss
from distill.losses.unit_classifier import UnitClassifier
from distill.presets import LossConfig
from distill.student import ParallelWaveNet
from distill.teacher import TeacherConditionals, WaveNetDensity
from likelihoods import noise as counter_noise
from likelihoods.affine import FlowOutput
from replicator import Replicator
from replicator.runs.errors import UserError
from wavenet.conditioner import SIDE_FRAMES
from wavenet.features import MelConvention

Terms = dict[str, tuple[float | tf.Tensor, tf.Tensor]]  # weight and value
SpectralLoss = Callable[..., tf.Tensor]  # of a sound and a recording
# Numbers of the seeds that are folded out of a step's.
SOUND, DRAWS, PHASE = 0, 1, 2
DB_PER_NEPER = 20.0 / math.log(10.0)


class Objective:
    """The loss of a batch of clips, [], and the values of its terms.

    A replica calls it with its slice of a batch and with the result of `global_inputs`. Only the
    student's weights get a gradient. The noise differs with `step`, the number of updates so far.
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
        discriminators: Discriminators | None = None,
    ):
        self.student, self.teacher, self.config = student, teacher, config
        self._spectral = _spectral_losses(config, classifier, mel)
        self._seed, self._step = seed, step
        self._discriminators = discriminators

    def __call__(self, batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the weighted sum of the terms, and their values.

        Args:
          batch: of `distill.training.batches`: waveform, mask, speaker, and frames.
        """
        seed = counter_noise.fold_in(self._seed, self._step)
        drawn = self._draw(batch, seed)
        terms: Terms = {}
        if self.config.kl:
            terms |= self._divergence(drawn, batch, seed)
        terms |= self._compare(drawn.output, batch)
        if self._discriminators is not None:
            terms |= self._oppose(self._discriminators, drawn.output, batch["waveform"])
        loss = tf.add_n([weight * value for weight, value in terms.values()])
        values = {name: value for name, (_, value) in terms.items()}
        return loss, values | {"level_db": _level_db(drawn.output, batch["waveform"])}

    def global_inputs(self, batch, replicator: Replicator) -> dict[str, tf.Tensor]:
        """Return the inputs of a share that depend on the whole batch, see `GlobalBatchLoss`.

        Returns:
          "first_row" int32 [], which addresses noise; means over all shares: the number "counted"
          of samples outside padding, the energies of the perceptual terms; for the contrastive
          term, "frames_before" [1, frames, channels] and "speaker_before" [1] of the row before the
          first, where the last row precedes the first.
          "level_db" is not included: it is the mean of the levels of the shares.
        """
        means = {"counted": tf.reduce_sum(batch["mask"])}
        for name, (_, loss) in self._spectral.items():
            if isinstance(loss, PerceptualLoss):
                means[f"{name}_energies"] = loss.energies(batch["waveform"])
        rows = _shape(batch)[0]
        known = replicator.all_reduce(means, "mean")
        known["first_row"] = replicator.replica_id * rows
        if self.config.contrastive:
            last = {name: batch[name][-1] for name in ("frames", "speaker") if name in batch}
            lasts = replicator.all_gather(last)
            before = (replicator.replica_id - 1) % replicator.num_replicas
            known |= {f"{name}_before": rows[before][tf.newaxis] for name, rows in lasts.items()}
        return known

    def frames(self, batch):
        """Return the frames that condition teacher and student, or None."""
        channels = self.student.config.feature_channels
        return batch["frames"][..., :channels] if channels else None

    def _draw(self, batch, seed) -> FlowOutput:
        rows, samples = _shape(batch)
        names = tf.range(rows) + batch.get("first_row", 0)
        # The absolute phase of the voice carries no information, so it is drawn anew each step.
        phase = counter_noise.uniform(counter_noise.fold_in(seed, PHASE), names, 0, 1)[:, 0, 0]
        condition, _ = self.student.condition(
            self.frames(batch),
            self._speaker(batch),
            samples,
            tf.cast(phase, tf.float64),
            self._side_frames,
        )
        noise = self.student.noise(counter_noise.fold_in(seed, SOUND), names, 0, samples)
        return self.student.draw(noise, condition)

    @property
    def _side_frames(self) -> int:
        """Neighbouring frames on either side of every clip, see `training.clip_context`."""
        return 0 if self.student.residual is None else SIDE_FRAMES

    def _speaker(self, batch):
        return batch["speaker"] if self.student.config.speakers else None

    def _divergence(self, drawn: FlowOutput, batch, seed) -> Terms:
        config, kind = self.config, self.student.noise_kind
        condition = self.teacher.condition(
            self.frames(batch), self._speaker(batch), _shape(batch)[1], self._side_frames
        )
        measure = functools.partial(self._measured, drawn, batch, seed)
        given = self.teacher.conditionals(drawn.output, condition)
        kl, cross, own = measure(given)
        terms = {"kl": (config.kl, kl), "cross_entropy": (0.0, cross), "entropy": (0.0, own)}
        if kind == "normal" and given.normal is not None:
            apart = kl_divergence.scales_apart(drawn, given.normal[1])
            value = kl_divergence.mean_of(apart, batch["mask"], batch.get("counted"))
            terms["regularisation"] = (config.kl * config.regularisation, value)
        if config.contrastive and condition is not None:
            # A student that ignores its condition is as near to the teacher of another one
            # (van den Oord et al. 2017, section 3.3).
            other = self.teacher.conditionals(
                drawn.output, self._previous_condition(condition, batch)
            )
            terms["contrastive"] = (-config.contrastive * config.kl, measure(other).kl)
        return terms

    def _measured(
        self, drawn: FlowOutput, batch, seed, given: TeacherConditionals
    ) -> kl_divergence.Divergence:
        """Return the divergence of drawn sound: in closed form between normals, else from draws."""
        kind, where = self.student.noise_kind, (batch["mask"], batch.get("counted"))
        if kind == "normal" and given.normal is not None:
            apart = kl_divergence.gaussian_divergence(drawn, *given.normal)
            kl = kl_divergence.mean_of(apart, *where)
            own = kl_divergence.mean_of(kl_divergence.entropy(drawn, kind), *where)
            return kl_divergence.Divergence(kl, kl + own, own)
        rows, samples = _shape(batch)
        key = counter_noise.fold_in(seed, DRAWS)
        names = tf.range(rows) + batch.get("first_row", 0)
        draws = kl_divergence.standard_draws(kind, key, rows, samples, self.config.draws, names)
        return kl_divergence.divergence(given, drawn, draws, kind, *where)

    def _previous_condition(self, condition, batch):
        """Return the teacher's condition of the row before each row of the whole batch."""
        if "speaker_before" not in batch:
            return tf.roll(condition, 1, 0)
        before = {name: batch.get(f"{name}_before") for name in ("frames", "speaker")}
        speaker = before["speaker"] if self.student.config.speakers else None
        frames = self.frames(before) if before["frames"] is not None else None
        first = self.teacher.condition(frames, speaker, _shape(batch)[1], self._side_frames)
        return tf.concat([first, condition[:-1]], 0)

    def _oppose(self, discriminators: Discriminators, sound, recorded) -> Terms:
        adversarial, matching, scoring = discriminators.losses(sound, recorded)
        is_on = tf.cast(self._step >= self.config.adversarial_after, tf.float32)
        return {
            "adversarial": (self.config.adversarial * is_on, adversarial),
            "matching": (self.config.matching * is_on, matching),
            "discriminator": (1.0, scoring),
        }

    def _compare(self, sound, batch) -> Terms:
        terms = {}
        for name, (weight, loss) in self._spectral.items():
            energies = batch.get(f"{name}_energies")
            known = () if energies is None else (energies,)
            terms[name] = (weight, loss(sound, batch["waveform"], *known))
        return terms


def _spectral_losses(
    config: LossConfig, classifier: UnitClassifier | None, mel: MelConvention | None
) -> dict[str, tuple[float, SpectralLoss]]:
    """Return weight and function, of a sound and a recording, of each spectral term that is on."""
    losses_: dict[str, SpectralLoss] = {
        "squared": squared_loss,
        "magnitude": magnitude_loss,
        "multi": multi_loss,
    }
    if config.feature or config.style:
        if classifier is None or mel is None:
            raise UserError("`classifier` and `mel` must be given for the perceptual terms.")
        losses_["feature"] = PerceptualLoss(classifier, mel)
        losses_["style"] = PerceptualLoss(classifier, mel, gram)
    weights = {name: float(getattr(config, name)) for name in losses_}
    return {name: (weights[name], loss) for name, loss in losses_.items() if weights[name]}


def _shape(batch) -> tuple[int, int]:
    rows, samples = batch["waveform"].shape
    return rows, samples


def _level_db(sound, recorded):
    ratio = (tf.reduce_mean(tf.square(sound)) + 1e-12) / (
        tf.reduce_mean(tf.square(recorded)) + 1e-12
    )
    return 0.5 * DB_PER_NEPER * tf.math.log(ratio)
