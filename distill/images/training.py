"""Train image students by guidance, divergence and features.

For every pixel of a real image, teacher and student have a distribution over 256 levels per channel
given the true pixels before it (teacher forcing). q is the teacher's, moved away from what it
predicts under its null condition (`outputs.guided_nats`), and p_S is the student's. The student
minimises

    KL(Q || P_S) = E_x sum_t sum_l q(l | x_<t) (log q(l | x_<t) - log p_S(l | x_<t))

whose gradient passes through no sample, and which penalises a student that misses a mode.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from distill.images.config import GuidedTargets, ImageDistillConfig
from distill.images.flow import FILE, Features, FlowLoss, classifier_for
from distill.teacher import digest, frozen_copy
from onepass.foundation.model_folders import variable_names
from onepass.foundation.rules import UserError, defaults, to_json
from onepass.likelihoods.noise import ZeroInitial
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import Recipe, Setup, TrainingRun
from onepass.trained import Trained
from pixelcnn.config import AnyTrainConfig, MultiscaleConfig, MultiscaleTrainConfig, PixelCNNConfig
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity, ImageLoss, pair_for_guidance, temperatures_of
from pixelcnn.networks.layers import EXACT, Mode, PixelOutputs, both_sides, guided_nats
from pixelcnn.training import CHANGEABLE as OF_TRAINING
from pixelcnn.training import EvaluationCallback, facts_of, portable_batches


class GuidedLoss(ImageLoss):
    """The loss for distilling guidance: KL from the guided teacher, and negative log-likelihood."""

    def __init__(
        self,
        student: ImageDensity,
        teacher: ImageDensity,
        targets: GuidedTargets,
        table_side: int = 0,
    ) -> None:
        super().__init__(student)
        self.teacher, self.targets, self.table_side = teacher, targets, table_side
        sizes: tuple[int, ...] = (student.config.data.size,)
        if student.multiscale is not None:
            sizes = student.multiscale.sizes
        each = temperatures_of(targets.temperature, len(sizes)).numpy().tolist()
        self._temperatures = dict(zip(map(str, sizes), each, strict=True))

    def __call__(self, batch: dict) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the weighted sum of the terms in nats per dimension, and each in bits."""
        mode, seeds = self.density.training_mode(batch), batch["seed"]
        student = self._student(batch, mode, seeds)
        kl = self._per_number(self._divergences(student, batch, mode, seeds))
        code = -self._per_number({part: own.nats() for part, own in student.items()})
        values = {"kl_bits_per_dim": kl / math.log(2.0), "bits_per_dim": code / math.log(2.0)}
        return self.targets.kl * kl + self.targets.likelihood * code, values

    def divergences(self, batch: dict) -> dict[str, tf.Tensor]:
        """Return {part: KL(Q || P_S) of each whole image}, float32 [batch] each, in nats."""
        return self._divergences(self._student(batch, EXACT), batch, EXACT)

    def _student(
        self, batch: dict, mode: Mode, seeds: tf.Tensor | None = None
    ) -> dict[str, PixelOutputs]:
        condition = self.density.conditioner(batch)
        return self.density.conditionals(batch["levels"], condition, mode, seeds)

    def _divergences(
        self,
        student: dict[str, PixelOutputs],
        batch: dict,
        mode: Mode,
        seeds: tf.Tensor | None = None,
    ) -> dict:
        targets = self.targets
        condition, levels, seeds = pair_for_guidance(
            self.teacher.conditioner, batch, targets.guidance, batch["levels"], seeds
        )
        without_dropout = mode._replace(seed=None)
        teacher = self.teacher.conditionals(levels, condition, without_dropout, seeds)
        divergences = {}
        for part, own in student.items():
            given, temperature = teacher[part], self._temperatures[part.split(".")[0]]
            if mode.seed is not None and self.table_side:
                given = thin_outputs(given, self.table_side, mode.seed)
                own = thin_outputs(own, self.table_side, mode.seed)
            divergences[part] = divergence(given, own, targets.guidance, temperature)
        return divergences

    def _per_number(self, parts: dict) -> tf.Tensor:
        return tf.reduce_mean(tf.add_n(list(parts.values()))) / self.density.num_dims


def thin_outputs(whole: PixelOutputs, side: int, seed: tf.Tensor) -> PixelOutputs:
    """Return the conditionals at evenly spaced rows and columns, scaled to represent all pixels.

    At least `side` of either are kept, or all of fewer than twice as many; `seed` offsets them.
    """
    size = whole.levels.shape[1:3]
    distance = min(size) // side
    if distance < 2:
        return whole
    corner = tf.unstack(tf.math.floormod(seed, distance))
    # A gather, because XLA can slice only at positions that are known when it compiles.
    rows, columns = (
        first + distance * tf.range(pixels // distance)
        for first, pixels in zip(corner, size, strict=True)
    )

    def take_pixels(each: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.gather(each, rows, axis=1), columns, axis=2)

    weights = whole.weights
    share = whole.share * math.prod(size) / math.prod(pixels // distance for pixels in size)
    return whole._replace(
        hidden=tf.nest.map_structure(take_pixels, whole.hidden),
        levels=take_pixels(whole.levels),
        share=share,
        weights=None if weights is None else take_pixels(weights),
    )


def divergence(
    teacher: PixelOutputs, student: PixelOutputs, weight: float, temperature: float | tf.Tensor
) -> tf.Tensor:
    """Return KL(Q || P_S) over all pixels and channels of a part, in nats, float32 [images].

    The teacher's conditionals are those under the conditions, then under the null condition.
    """
    sides, channels = both_sides(teacher.hidden), tf.unstack(student.levels, axis=-1)
    each = 0.0
    for c in range(len(channels)):
        before = channels[:c]
        moved = guided_nats(teacher.output, sides, before, weight, temperature)
        target = tf.stop_gradient(tf.nn.log_softmax(moved))
        own = student.output.level_log_probs(student.hidden, before)
        each += tf.reduce_sum(tf.exp(target) * (target - own), -1)
    return student.sum_per_image(each)


CHANGEABLE = (*OF_TRAINING, "teacher")
LOSSES: dict[str, Callable[..., GuidedLoss | FlowLoss]] = {
    "flow": lambda config, student, teacher, features: FlowLoss(
        student, teacher, config.targets, features
    ),
    "guided": lambda config, student, teacher, features: GuidedLoss(
        student, teacher, config.targets, config.table_side
    ),
}
"""Loss factory of each kind of distillation: takes the configuration, the student, the teacher, and
a classifier's features, or None if the loss does not compare them. Add new kinds here."""


class ImageStudentRecipe(Recipe):
    """Recipe for the distillation of an image model; the result is an image model too."""

    things: ClassVar = "images"
    changeable: ClassVar = CHANGEABLE
    keeps: ClassVar = (FILE,)

    @property
    def rows(self) -> int:
        """Number of images in a batch."""
        return self.config.batch_size

    def prepare(self, run: TrainingRun) -> tuple[ImageDataset, Features | None]:
        """Claim the run, and return the images and the features that the loss compares."""
        dataset = dataset_for(self.config, self.teacher, self.data)
        facts = {**facts_of(dataset), "teacher_weights": digest(self.teacher.network)}
        facts["targets"] = to_json(self.config.targets)
        stored = self.describe_run(dataset.config.kind, dataset.config, **facts)
        unsaid = {**defaults(dataset.config), "targets": defaults(self.config.targets)}
        run.claim(stored, CHANGEABLE, unsaid)
        run.log_lines(dataset.notes)
        return dataset, features_for(self.config, dataset, run.run_file(FILE))

    def set_up(self, run: TrainingRun, prepared: tuple[ImageDataset, Features | None]) -> Setup:
        """Return the student's training state, loss, data and callbacks as a `Setup`."""
        (dataset, features), config = prepared, self.config
        student, frozen = student_and_teacher(dataset.config, self.teacher)
        state = TrainState(student, config.optimizer, config.loop.num_steps)
        loss = LOSSES[config.kind](config, student, frozen, features)
        divergences = loss.divergences if config.targets.has_divergence else None
        return Setup(
            state,
            loss,
            dataset.training,
            lambda: EvaluationCallback(student, state, dataset, run.samples(), divergences),
            portable_batches(dataset),
            lambda: start(state, student, self.teacher),
            {f"teacher/{i:03d}": weight for i, weight in enumerate(frozen.variables)},
        )


def student_and_teacher(
    config: AnyTrainConfig, teacher: Trained
) -> tuple[ImageDensity, ImageDensity]:
    """Return an untrained student and a frozen copy of its teacher."""
    make = functools.partial(ImageDensity, teacher.config, ZeroInitial())
    return ImageDensity(config), frozen_copy(teacher.network, make)


def features_for(config: ImageDistillConfig, dataset: ImageDataset, path: Path) -> Features | None:
    """Return the features that the loss compares, or None; `path` is the classifier's file."""
    if not config.needs_features:
        return None
    return Features(classifier_for(dataset, dataset.config.network.base_size, path))


def start(state: TrainState, student: ImageDensity, teacher: Trained) -> None:
    """Initialise the student's weights from the teacher's weights of the same names."""
    stored = _variables_by_name(teacher.network)
    state.start([stored.get(name, weight) for name, weight in _variables_by_name(student).items()])


def _variables_by_name(density: ImageDensity) -> dict:
    return dict(zip(variable_names(density), density.trainable_variables, strict=True))


def dataset_for(config: ImageDistillConfig, teacher: Trained, data: Path | str) -> ImageDataset:
    """Return the images as a dataset with the student's configuration."""
    _check(config, teacher)
    dataset = ImageDataset.read(data, student_config(config, teacher.config))
    of_classes = teacher.config.conditioning.kind == "class"
    if of_classes and dataset.classes != teacher.front.classes:
        classes, known = ", ".join(dataset.classes), ", ".join(teacher.front.classes)
        raise UserError(f"{data} has the classes {classes}; the teacher knows {known}.")
    return dataset


def student_config(config: Any, teacher: AnyTrainConfig) -> AnyTrainConfig:
    """Return the teacher's configuration, with the training settings and flows of the student."""
    given = {field.name: getattr(teacher, field.name) for field in dataclasses.fields(teacher)}
    given |= {
        "data": dataclasses.replace(teacher.data, batch_size=config.batch_size),
        "optimizer": config.optimizer,
        "loop": config.loop,
        "compute_dtype": config.compute_dtype,
        "seed": config.seed,
    }
    if config.kind != "flow":
        return type(teacher)(**given)
    flows: dict[str, Any] = {
        "base": PixelCNNConfig(1, config.units, config.units),
        "base_flows": config.flows,
    }
    if teacher.kind == "multiscale":
        network = dataclasses.replace(teacher.network, **flows)
    else:
        network = MultiscaleConfig(teacher.data.size, **flows)
    return MultiscaleTrainConfig(**given | {"network": network})


def _check(config: ImageDistillConfig, teacher: Trained) -> None:
    if not teacher.network.whole:
        raise UserError("The teacher has not trained all its parts.")
    if teacher.front.bits > 8:
        raise UserError(f"The teacher must be a model of 8-bit images, got {teacher.front.bits}.")
    if teacher.network.multiscale is not None and teacher.network.multiscale.has_flow:
        raise UserError("The teacher's base is already a flow; it must be a PixelCNN.")
    if config.kind == "guided" and not teacher.config.conditioning.has_null:
        raise UserError(
            "Only a model of classes can be guided, or a model of captions whose training dropped "
            "some of them; this teacher is neither."
        )
    if config.kind == "flow" and not teacher.config.output.has_density:
        raise UserError(
            "A softmax over levels has no gradient that could reach a flow; it needs a teacher "
            "with --output.likelihood logistic."
        )
