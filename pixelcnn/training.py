"""Training of an image model: from images to a run directory."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from foundation.errors import UserError
from foundation.stored_config import defaults, stored_config, to_json
from pixelcnn.config import KINDS, AnyTrainConfig
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity, ImageLoss
from pixelcnn.evaluation_callback import EvaluationCallback
from replicator import Replicator
from replicator.training.command import check_outside
from replicator.training.loop import Outcome
from replicator.training.state import TrainState
from replicator.training.training_run import TrainingRun

CHANGEABLE = ("loop", "data_folder", "dev_digest")


def train(
    preset: str,
    config: AnyTrainConfig,
    data: Path | str,
    workdir: Path,
    log: Callable[[str], None] = print,
    replicator: Replicator | None = None,
) -> Outcome:
    """Train or resume a run in `workdir` and return how it ended.

    Args:
      preset: name of the preset, which is stored with the run.
      config: everything that decides the outcome.
      data: images, in one of the forms that `read_corpus` reads, or a folder of episodes of video.
      workdir: the run directory, made if missing; a run there must have the same configuration.
      log: called with progress messages.
      replicator: the devices to train on; None: one device. It changes only the time that training
        takes.

    Raises UserError or DataError with a line that explains what to do.
    """
    check_outside(workdir, data, "images")
    with TrainingRun(workdir, replicator, log, config.data.batch_size, config.optimizer) as run:
        with run.preparing():
            dataset = ImageDataset.read(data, config)
            config = dataset.resolved
            dataset = dataclasses.replace(dataset, config=config)
            run.claim(run_config(preset, config, dataset, data), CHANGEABLE, defaults(config))
            run.log(*dataset.notes)
        with run.variables():
            density = ImageDensity(config)
            state = TrainState(density, config.optimizer, config.loop.num_steps)
        return run.train(
            state,
            ImageLoss(density),
            config.loop,
            dataset.training,
            lambda: EvaluationCallback(density, state, dataset, run.samples()),
        )


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
