"""Distillation of an image model: from a trained teacher and images to a run directory."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from distill.frozen import digest, frozen_copy
from distill.images.config import ImageDistillConfig
from distill.images.features import FILE, Features, classifier_for
from distill.images.flow import FlowLoss
from distill.images.guidance import GuidedLoss
from onepass.foundation.errors import UserError
from onepass.foundation.model_folder import variable_names
from onepass.foundation.stored_config import defaults, to_json
from onepass.likelihoods.initial import ZeroInitial
from onepass.replicator.training.recipe import Recipe, Setup
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import TrainingRun
from onepass.trained import Trained
from pixelcnn.config import AnyTrainConfig, MultiscaleTrainConfig
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity
from pixelcnn.networks.config import MultiscaleConfig, PixelCNNConfig
from pixelcnn.training import CHANGEABLE as OF_TRAINING
from pixelcnn.training import EvaluationCallback, facts_of, portable_batches

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
        run.log(*dataset.notes)
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
