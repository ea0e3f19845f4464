"""Training of an image model: from images to a run directory."""

import dataclasses
import functools
from pathlib import Path
from typing import ClassVar

from foundation.atomic_files import write_npz
from foundation.errors import UserError
from foundation.run_directory import Keys
from foundation.stored_config import defaults, stored_config, to_json
from pixelcnn.config import KINDS, AnyTrainConfig
from pixelcnn.data import batch_sampling
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity, ImageLoss
from pixelcnn.evaluation_callback import EvaluationCallback
from replicator.training.recipe import PortableBatches, Run, Setup
from replicator.training.state import TrainState

IMAGES = "images.npz"  # of an exported folder
CHANGEABLE = ("loop", "data_folder", "dev_digest")


@dataclasses.dataclass(frozen=True)
class ImageRecipe:
    """Training of an image model on images.

    Attributes:
      preset: name of the preset, which is stored with the run.
      config: the training configuration.
      data: images, in one of the forms that `read_corpus` reads, or a folder of episodes of video.
    """

    preset: str
    config: AnyTrainConfig
    data: Path | str

    things: ClassVar[str] = "images"
    changeable: ClassVar[Keys] = CHANGEABLE
    keeps: ClassVar[Keys] = ()

    @property
    def rows(self) -> int:
        """Number of images of a batch."""
        return self.config.data.batch_size

    def prepare(self, run: Run) -> ImageDataset:
        """Return the images, of a resolved configuration, after claiming the run."""
        dataset = ImageDataset.read(self.data, self.config)
        config = dataset.resolved
        dataset = dataclasses.replace(dataset, config=config)
        run.claim(run_config(self.preset, config, dataset, self.data), CHANGEABLE, defaults(config))
        run.log(*dataset.notes)
        return dataset

    def set_up(self, run: Run, prepared: ImageDataset) -> Setup:
        """Return the model and its training."""
        density = ImageDensity(prepared.config)
        optimizer, loop = self.config.optimizer, self.config.loop
        state = TrainState(density, optimizer, loop.num_steps)
        return Setup(
            state,
            ImageLoss(density),
            prepared.training,
            lambda run: EvaluationCallback(density, state, prepared, run.samples()),
            portable_batches(prepared),
        )


def portable_batches(dataset: ImageDataset) -> PortableBatches:
    """Return the batches of training for a machine without TensorFlow."""
    arrays, settings = dataset.drawn
    write = functools.partial(write_npz, arrays=arrays)
    return PortableBatches(batch_sampling, {**settings, "file": IMAGES}, write)


def run_config(
    preset: str, config: AnyTrainConfig, dataset: ImageDataset, data: Path | str
) -> dict:
    """Return the content of a run's config.json."""
    folder = str(data) if str(data).startswith("tfds:") else str(Path(data).absolute())
    return {
        "kind": config.kind,
        "preset": preset,
        **to_json(config),
        "class_names": list(dataset.classes),
        "statistics": dataset.statistics and dataset.statistics.to_dict(),
        "data_folder": folder,
        "dev_digest": dataset.dev_digest,
    }


def config_from(stored: dict) -> AnyTrainConfig:
    """Return the configuration that a config.json holds.

    Raises:
      UserError: naming what is wrong in it.
    """
    kind = stored.get("kind")
    if kind not in KINDS:
        raise UserError(f"It holds a {kind}, not a {' or a '.join(KINDS)}.")
    return stored_config(KINDS[kind], stored)
