"""Training a picture model: from pictures to a run directory."""

import dataclasses
import math
from pathlib import Path

from pixelcnn.config import MultiscaleTrainConfig, PixelCNNTrainConfig
from pixelcnn.density import AnyTrainConfig, PictureDensity
from pixelcnn.shelf import Shelf
from pixelcnn.watching import Watcher
from replicator.errors import UserError
from replicator.loop import Outcome, Trainer
from replicator.run_directory import RunDirectory, stored_config, to_json
from replicator.state import TrainState

KINDS: dict[str, type] = {"pixelcnn": PixelCNNTrainConfig, "multiscale": MultiscaleTrainConfig}
CHANGEABLE = ("loop", "data_folder")


def kind_of(config: AnyTrainConfig) -> str:
    """The kind of model that a configuration is of."""
    return next(kind for kind, of in KINDS.items() if isinstance(config, of))


def train(
    preset: str, config: AnyTrainConfig, data: Path | str, workdir: Path, say=print
) -> Outcome:
    """Trains, or goes on training, in `workdir`; how it ended.

    Args:
      preset: the name it goes by.
      config: everything that decides the outcome.
      data: pictures, see `read_corpus`, or episodes, see `read_episodes`.
      workdir: the run directory, made if missing; a run there must have the same configuration.
      say: called with lines for the person watching.

    Raises UserError or DataError with a line that explains what to do.
    """
    if Path(workdir).resolve().is_relative_to(Path(data).resolve()):
        raise UserError(
            f"The run directory {workdir} must be outside the data folder {data}: its samples "
            "would be taken for pictures."
        )
    shelf = Shelf.read(data, config)
    config = shelf.resolved
    shelf = dataclasses.replace(shelf, config=config)
    run = RunDirectory.create(workdir, run_config(preset, config, shelf, data), CHANGEABLE)
    try:
        for line in shelf.notes:
            say(line)
        return _train(run, config, shelf, say)
    finally:
        run.unlock()


def _train(run: RunDirectory, config: AnyTrainConfig, shelf: Shelf, say) -> Outcome:
    density = PictureDensity(config)
    state = TrainState(density, config.optimizer, config.loop.num_steps)
    trainer = Trainer(run, state, density.loss, config.loop)
    for line in trainer.resume():
        say(line)
    weights = sum(math.prod(w.shape) for w in state.weights)
    say(f"{weights:,} weights" + (f", going on from step {trainer.step}" if trainer.step else ""))
    watcher = Watcher(density, state, shelf, run.folder("samples"))
    return trainer.train(shelf.training(trainer.step), watcher)


def run_config(preset: str, config: AnyTrainConfig, shelf: Shelf, data: Path | str) -> dict:
    """What config.json says of a run."""
    folder = str(data) if str(data).startswith("tfds:") else str(Path(data).absolute())
    return {
        "kind": kind_of(config),
        "preset": preset,
        **to_json(config),
        "class_names": list(shelf.classes),
        "statistics": shelf.statistics and shelf.statistics.to_dict(),
        "data_folder": folder,
    }


def config_from(stored: dict) -> AnyTrainConfig:
    """The configuration that a config.json holds, or a UserError that says what is wrong in it."""
    kind = stored.get("kind")
    if kind not in KINDS:
        raise UserError(f"It holds a {kind}, not a {' or a '.join(KINDS)}.")
    return stored_config(KINDS[kind], stored)
