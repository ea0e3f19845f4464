"""The loss for distilling sound: the sum of the terms whose weights are not 0.

Every term has an entry in `TERMS`. `register` adds a term from another package, whose weight is in
`LossConfig.others`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from distill.config import LossConfig
from distill.losses.discriminators import Discriminators, Opposition
from distill.losses.divergence import KL, Contrastive
from distill.losses.perceptual import Perceived, PerceptualLoss, UnitClassifier, gram
from distill.losses.spectra import magnitude_loss, multi_loss, squared_loss
from distill.losses.terms import Compared, Draw, Listed, Term, sum_terms
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity
from onepass.foundation.rules import UserError
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.affine import FlowOutput
from onepass.replicator import Replicator
from wavenet.conditioner import SIDE_FRAMES
from wavenet.config import MelConvention

SOUND, PHASE = 0, 2  # folded into the seed of a step, for the noise and for the source's phase
DB_PER_NEPER = 20.0 / math.log(10.0)


class Parts(NamedTuple):
    """The inputs of the factories of terms, besides the configuration."""

    step: tf.Variable
    classifier: UnitClassifier | None = None
    mel: MelConvention | None = None
    discriminators: Discriminators | None = None


Factory = Callable[[LossConfig, Parts], Term]  # called if the term's weight is not 0


def _perceptual(name: str, compared: Callable[[tf.Tensor], tf.Tensor]) -> Factory:
    def make(config: LossConfig, parts: Parts) -> Term:
        if parts.classifier is None or parts.mel is None:
            raise UserError("`classifier` and `mel` must be given for the perceptual terms.")
        return Perceived(name, PerceptualLoss(parts.classifier, parts.mel, compared))

    return make


def _opposition(config: LossConfig, parts: Parts) -> Term:
    if parts.discriminators is None:
        raise UserError("`discriminators` must be given for the adversarial terms.")
    return Opposition(parts.discriminators, config, parts.step)


# The terms by name, as `LossConfig.weight` takes it, in the order in which they are summed.
TERMS: dict[str, Factory] = {
    "kl": lambda config, parts: KL(config.kl, config.draws, config.regularisation).parts,
    "contrastive": lambda config, parts: Contrastive(config.contrastive * config.kl, config.draws),
    "squared": lambda config, parts: Compared(squared_loss),
    "magnitude": lambda config, parts: Compared(magnitude_loss),
    "multi": lambda config, parts: Compared(multi_loss),
    "feature": _perceptual("feature", tf.identity),
    "style": _perceptual("style", gram),
    "opposition": _opposition,
}


def register(name: str) -> Callable[[Factory], Factory]:
    """Return a decorator that registers a term of the loss, whose weight is in `LossConfig.others`.

    It decorates a function from `LossConfig` and `Parts` to the term. The name is that in
    `LossConfig.others`, and that under which a scalar is logged.
    """

    def add(factory: Factory) -> Factory:
        TERMS[name] = factory
        return factory

    return add


def terms_of(config: LossConfig, parts: Parts) -> list[Listed]:
    """Return the terms whose weights are not 0."""
    if unknown := sorted({name for name, _ in config.other_weights} - TERMS.keys()):
        raise UserError(f"`loss.others` must be of {', '.join(TERMS)}, got {unknown[0]}.")
    weights = {name: config.weight(name) for name in TERMS}
    return [Listed(name, w, TERMS[name](config, parts)) for name, w in weights.items() if w]


class Objective:
    """The loss of a batch of clips, as the weighted sum of its terms.

    A replica calls it with its share of a batch and the result of `global_inputs`. Only the weights
    of the student and of the discriminators get a gradient. Each step has different noise.
    """

    def __init__(
        self,
        student: ParallelWaveNet,
        teacher: WaveNetDensity,
        config: LossConfig,
        seed: int,
        parts: Parts,
    ) -> None:
        self.student, self.teacher = student, teacher
        self.terms = terms_of(config, parts)
        self._seed, self._step = seed, parts.step
        self._side_frames = 0 if student.residual is None else SIDE_FRAMES

    def __call__(self, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the weighted sum of the terms; and, by name, their values and the level in dB."""
        draw = self.draw(batch)
        loss, values = sum_terms(self.terms, draw)
        sound, recorded = (
            tf.reduce_mean(tf.square(x)) + 1e-12 for x in (draw.output.output, draw.recorded)
        )
        return loss, values | {"level_db": 0.5 * DB_PER_NEPER * tf.math.log(sound / recorded)}

    def draw(self, batch: dict[str, tf.Tensor]) -> Draw:
        """Draw the student's sound for a batch; return the `Draw` that the terms read."""
        seed = counter_noise.fold_in(self._seed, self._step)
        rows = tf.range(_shape(batch)[0]) + batch.get("first_row", 0)
        output = self._draw_flow_output(batch, seed, rows)
        kind, waveform = self.student.noise_kind, batch["waveform"]
        return Draw(output, waveform, kind, seed, rows, self._teach_function(output, batch), batch)

    def global_inputs(
        self, batch: dict[str, tf.Tensor], replicator: Replicator
    ) -> dict[str, tf.Tensor]:
        """Return the inputs of a share that depend on the whole batch, for `GlobalBatchLoss`.

        They are "first_row", int32 [], the index of the share's first row; "counted", the mean
        number of samples outside padding over all shares; and the inputs of the terms.
        """
        known = replicator.all_reduce({"counted": tf.reduce_sum(batch["mask"])}, "mean")
        known["first_row"] = replicator.replica_id * _shape(batch)[0]
        for listed in self.terms:
            inputs = getattr(listed.term, "global_inputs", None)
            known |= {} if inputs is None else inputs(batch, replicator)
        return known

    def frames(self, batch: dict[str, tf.Tensor]) -> tf.Tensor | None:
        """Return the frames that condition the teacher and the student, or None."""
        channels = self.student.config.feature_channels
        return batch["frames"][..., :channels] if channels else None

    def _draw_flow_output(
        self, batch: dict[str, tf.Tensor], seed: tf.Tensor, rows: tf.Tensor
    ) -> FlowOutput:
        samples = _shape(batch)[1]
        # The absolute phase of the voice carries no information, so each step draws a new phase.
        phase = counter_noise.uniform(counter_noise.fold_in(seed, PHASE), rows, 0, 1)[:, 0, 0]
        condition, _ = self.student.condition(
            self.frames(batch),
            self._speaker(batch),
            samples,
            tf.cast(phase, tf.float64),
            self._side_frames,
        )
        noise = self.student.noise(counter_noise.fold_in(seed, SOUND), rows, 0, samples)
        return self.student.draw(noise, condition)

    def _teach_function(
        self, output: FlowOutput, batch: dict[str, tf.Tensor]
    ) -> Callable[[bool], Any]:
        @functools.cache
        def condition() -> Any:
            return self.teacher.condition(
                self.frames(batch), self._speaker(batch), _shape(batch)[1], self._side_frames
            )

        def teach(by_row_before: bool) -> Any:
            given = condition()
            if by_row_before:
                if given is None:
                    return None
                given = self._previous_condition(given, batch)
            return self.teacher.conditionals(output.output, given)

        return teach

    def _speaker(self, batch: dict[str, tf.Tensor]) -> tf.Tensor | None:
        return batch["speaker"] if self.student.config.speakers else None

    def _previous_condition(self, condition: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        if "speaker_before" not in batch:
            return tf.roll(condition, 1, 0)
        before = {name: batch.get(f"{name}_before") for name in ("frames", "speaker")}
        speaker = before["speaker"] if self.student.config.speakers else None
        frames = self.frames(before) if before["frames"] is not None else None
        first = self.teacher.condition(frames, speaker, _shape(batch)[1], self._side_frames)
        return tf.concat([first, condition[:-1]], 0)


def _shape(batch: dict[str, tf.Tensor]) -> tuple[int, int]:
    rows, samples = batch["waveform"].shape
    return rows, samples
