"""Train any family by its recipe: prepare the data, set up the model, train it.

`onepass.replicator.portable.export` exports the step of the same recipe instead.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from onepass.foundation.run_directory import Keys
from onepass.foundation.stored_config import to_json
from onepass.replicator.strategies import Replicator
from onepass.replicator.training.command import check_outside
from onepass.replicator.training.loop import Evaluate, Outcome
from onepass.replicator.training.state import LossFn, TrainState
from onepass.replicator.training.training_run import BatchesFrom, TrainingRun


class PortableBatches(NamedTuple):
    """Batches for a machine without TensorFlow; the setting "file" is the data file's name."""

    module: ModuleType
    settings: dict[str, Any]
    write: Callable[[Path], None]


@dataclasses.dataclass(frozen=True)
class Setup:
    """A model with everything that is needed to train it.

    Attributes:
      batches: function from a step, i and k to the batches starting at that step, with part i of k
        equal parts of the rows.
      start: function that initialises the weights of a new run; None: they are already initialised.
      description: text that describes the model to the user; "": the number of weights is shown.
      tensor_float_32: whether an accelerator may multiply in TensorFloat32.
      stages: function from the specs of a batch to what an exported folder records about the model
        as a pipeline; {} if it cannot be cut into stages.
    """

    state: TrainState
    loss: LossFn
    batches: BatchesFrom
    evaluation: Callable[[], Evaluate]
    portable: PortableBatches
    start: Callable[[], None] | None = None
    frozen: Mapping[str, tf.Variable] = dataclasses.field(default_factory=dict)
    description: str = ""
    tensor_float_32: bool = True
    stages: Callable[[Mapping[str, tf.TensorSpec]], Any] = lambda specs: {}


@dataclasses.dataclass(frozen=True)
class Recipe(abc.ABC):
    """A choice of model, data and training; each family has a subclass.

    Attributes:
      things: what the data are, "recordings" or "images".
      changeable: keys of config.json that may change when a run is resumed.
      keeps: names of the files that a run stores next to its checkpoints.
    """

    preset: str
    config: Any
    data: Any
    teacher: Any = None
    teacher_path: Any = None

    things: ClassVar[str]
    changeable: ClassVar[Keys]
    keeps: ClassVar[Keys] = ()

    @property
    def rows(self) -> int:
        """Number of rows in a batch."""
        return self.config.data.batch_size

    def describe_run(self, kind: str, config: Any, **facts: Any) -> dict:
        """Return the contents of config.json, with the locations of the data and of the teacher."""
        data = str(self.data)
        folder = data if data.startswith("tfds:") else str(Path(data).absolute())
        teacher = {} if self.teacher is None else {"teacher": str(self.teacher_path)}
        named = {"kind": kind, "preset": self.preset, **to_json(config)}
        return {**named, **facts, "data_folder": folder, **teacher}

    @abc.abstractmethod
    def prepare(self, run: TrainingRun) -> Any:
        """Read the data, claim the run directory, and return the second argument of `set_up`."""

    @abc.abstractmethod
    def set_up(self, run: TrainingRun, prepared: Any) -> Setup:
        """Return the model with everything needed to train it; called in the replicator's scope."""


def train(
    recipe: Recipe,
    workdir: Path,
    log: Callable[[str], None] = print,
    replicator: Replicator | None = None,
) -> Outcome:
    """Train or resume a run in `workdir`, and return its outcome."""
    check_outside(workdir, recipe.data, recipe.things)
    config = recipe.config
    with TrainingRun(workdir, replicator, log, recipe.rows, config.optimizer) as run:
        with run.preparing():
            prepared = recipe.prepare(run)
        with run.variables():
            setup = recipe.set_up(run, prepared)
        return run.train(
            setup.state,
            setup.loss,
            config.loop,
            setup.batches,
            setup.evaluation,
            start=setup.start,
            reads=tuple(setup.frozen.values()),
            description=setup.description,
        )
