"""Training of an image model: from images to a run directory."""

import dataclasses
import functools
from typing import ClassVar

from onepass.foundation.atomic_files import write_npz
from onepass.foundation.errors import UserError
from onepass.foundation.stored_config import defaults, stored_config
from onepass.replicator.training.recipe import PortableBatches, Recipe, Setup
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import TrainingRun
from pixelcnn.config import KINDS, AnyTrainConfig
from pixelcnn.data import batch_sampling
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity, ImageLoss
from pixelcnn.evaluation_callback import EvaluationCallback

IMAGES = "images.npz"  # name of the file with images in an exported folder
CHANGEABLE = ("loop", "data_folder", "dev_digest")


class ImageRecipe(Recipe):
    """Recipe for training an image model."""

    things: ClassVar = "images"
    changeable: ClassVar = CHANGEABLE

    def prepare(self, run: TrainingRun) -> ImageDataset:
        """Claim the run, and return the images with the resolved configuration."""
        dataset = ImageDataset.read(self.data, self.config)
        config = dataset.resolved
        dataset = dataclasses.replace(dataset, config=config)
        stored = self.describe_run(config.kind, config, **facts_of(dataset))
        run.claim(stored, CHANGEABLE, defaults(config))
        run.log(*dataset.notes)
        return dataset

    def set_up(self, run: TrainingRun, prepared: ImageDataset) -> Setup:
        """Return the training state, loss, batches and evaluation callback as a `Setup`."""
        density = ImageDensity(prepared.config)
        optimizer, loop = self.config.optimizer, self.config.loop
        state = TrainState(density, optimizer, loop.num_steps)
        return Setup(
            state,
            ImageLoss(density),
            prepared.training,
            lambda: EvaluationCallback(density, state, prepared, run.samples()),
            portable_batches(prepared),
        )


def portable_batches(dataset: ImageDataset) -> PortableBatches:
    """Return the training batches for a machine without TensorFlow."""
    arrays, settings = dataset.drawn
    write = functools.partial(write_npz, arrays=arrays)
    return PortableBatches(batch_sampling, {**settings, "file": IMAGES}, write)


def facts_of(dataset: ImageDataset) -> dict:
    """Return the facts about the images for config.json."""
    return {
        "class_names": list(dataset.classes),
        "statistics": dataset.statistics and dataset.statistics.to_dict(),
        "dev_digest": dataset.dev_digest,
    }


def config_from(stored: dict) -> AnyTrainConfig:
    """Return the configuration stored in a config.json."""
    kind = stored.get("kind")
    if kind not in KINDS:
        raise UserError(f"It holds a {kind}, not a {' or a '.join(KINDS)}.")
    return stored_config(KINDS[kind], stored)
