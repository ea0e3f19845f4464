"""The driver of every training run, used by `onepass.fit`, the commands and `train_network`.

with TrainingRun(workdir, replicator, log, batch_size) as run:
    with run.preparing():
        data = ...
        run.claim(config, changeable, defaults)
    with run.variables():
        network = ...
        state = TrainState(network, ...)
    return run.train(state, loss, loop, batches, evaluation)

A family trains by its `Recipe`, whose step `onepass.replicator.portable.export` exports.
"""

import abc
import contextlib
import dataclasses
import functools
import math
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from onepass.foundation.files import make_folder
from onepass.foundation.metrics import MetricsLog
from onepass.foundation.rules import to_json
from onepass.foundation.run_directory import NO_DEFAULTS, Keys, RunDirectory
from onepass.replicator import strategies
from onepass.replicator.strategies import Replicator
from onepass.replicator.strategies.coordination import barrier, variable_scope
from onepass.replicator.training.batches import Batch
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, check_outside
from onepass.replicator.training.loop import Evaluate, Listener, Outcome, Trainer
from onepass.replicator.training.state import LossFn, TrainState, check_rows

BatchesFrom = Callable[[int, int, int], Iterable[Batch]]


class TrainingRun(contextlib.AbstractContextManager["TrainingRun"]):
    """A training run, from data to outcome; a context manager that unlocks its directory.

    Args:
      workdir: the run directory; None: the run exists only in memory.
      replicator: the devices; None: one device.
      rows: number of rows of a global batch, which the replicas and the microbatches of `optimizer`
        must divide evenly.
    """

    def __init__(
        self,
        workdir: str | Path | None,
        replicator: Replicator | None = None,
        log: Callable[[str], None] = print,
        rows: int = 1,
        optimizer: OptimizerConfig | None = None,
    ):
        self.replicator = strategies.single() if replicator is None else replicator
        check_rows(rows, self.replicator, 1 if optimizer is None else optimizer.accumulate)
        self._workdir = Path(workdir) if workdir else None
        self._log = log
        self._stack = contextlib.ExitStack()
        self._steps_before: int | None = None  # length of the run when it was last claimed

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def directory(self) -> RunDirectory:
        """Run directory, created and locked on first use; raises ValueError for a run in memory."""
        if self._workdir is None:
            raise ValueError("A run in memory has no directory.")
        return self._record

    @functools.cached_property
    def _record(self) -> RunDirectory:
        if self._workdir is None:
            return RunDirectory(None)
        directory = RunDirectory.lock_folder(self._workdir, self.replicator.is_chief)
        self._stack.callback(directory.unlock)
        return directory

    @property
    def stored(self) -> dict:
        """Contents of config.json of a resumed run; {} for a new run."""
        run = self._workdir
        return RunDirectory(run).config() if run and (run / "config.json").exists() else {}

    def check(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        """Call `RunDirectory.check`; raises ValueError for a run in memory."""
        self.directory.check(config, changeable, defaults)

    def claim(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        """Store the configuration as `RunDirectory.claim` does; a run in memory writes no file."""
        loop = self.stored.get("loop")
        before = loop.get("num_steps") if isinstance(loop, Mapping) else None
        self._steps_before = before if isinstance(before, int) else None
        self._record.claim(config, changeable, defaults)

    def log(self, line: str) -> None:
        """Log a line for the user, in the chief."""
        if self.replicator.is_chief:
            self._log(line)

    def log_lines(self, lines: Iterable[str]) -> None:
        """Log lines for the user, in the chief."""
        for line in lines:
            self.log(line)

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Read data and claim the directory in the block, in the chief first; all leave at once."""
        if not self.replicator.is_chief:
            barrier(self.replicator)
        yield
        if self.replicator.is_chief:
            barrier(self.replicator)
        barrier(self.replicator)

    def variables(self) -> contextlib.AbstractContextManager:
        """Return a context for creating all variables that a step reads."""
        return variable_scope(self.replicator)

    def samples(self) -> Path:
        """Return the folder for samples of evaluations, created if missing."""
        return make_folder(self.directory.path / "samples")

    def run_file(self, name: str) -> Path:
        """Return the path of a file in the run directory, which need not exist."""
        return self.directory.path / name

    def sharing(self, name: str) -> Path | None:
        """Return the run directory if this process shares its folder `name`, else None."""
        if self._workdir is None:
            return None
        is_shared = self.replicator.is_chief or (self._workdir / name).is_dir()
        return self._workdir if is_shared else None

    def train(
        self,
        state: TrainState,
        loss: LossFn,
        loop: LoopConfig,
        batches: BatchesFrom,
        evaluation: Callable[[], Evaluate | None],
        *,
        start: Callable[[], None] | None = None,
        listener: Listener | None = None,
        reads: Sequence[tf.Variable] = (),
        description: str = "",
        title: str = "training",
    ) -> Outcome:
        """Train to the end, starting at the newest checkpoint if there is one; return the outcome.

        Args:
          state: the variables to train, created inside `variables`, like `loss` and `reads`.
          batches: function from a step, i and k to the batches starting at the step, with part i of
            k equal parts of their rows.
          evaluation: function that returns the evaluation callback; called only in the chief, like
            `start`, which initialises the weights of a new run, and the methods of `listener`.
          reads: variables that the loss reads in addition to the state.
          description: text that describes the model to the user; "": the number of its weights.

        Raises:
          DivergedError: a loss or gradient was not finite; that update is not applied.
          UserError: a file could not be written, a step does not fit into memory, or another
            process has ended. The state is saved if possible; the message names the step on disk.
        """
        trainer = Trainer(self._record, state, loss, loop, self.replicator, reads)
        self.log_lines(trainer.resume(start))
        resumed = f", resuming from step {trainer.step}" if trainer.step else ""
        self.log((description or f"{state.size:,} weights") + resumed)
        if trainer.step and self._steps_before is not None:
            self._note_rate(state, self._steps_before, loop.num_steps)
        evaluate = evaluation() if self.replicator.is_chief else None
        return trainer.train(functools.partial(batches, trainer.step), evaluate, listener, title)

    def _note_rate(self, state: TrainState, before: int, num_steps: int) -> None:
        was, now = (float(state.rate(state.step, steps)) for steps in (before, num_steps))
        if not math.isclose(was, now, rel_tol=1e-6):
            self.log(
                f"num_steps was {before} and is {num_steps} now: the learning rate jumps from "
                f"{was:.3g} to {now:.3g} at step {int(state.step.numpy()) + 1}, as if the run had "
                "started with the new length"
            )


def train_network(
    network: tf.Module,
    loss: LossFn,
    optimizer: OptimizerConfig,
    loop: LoopConfig,
    batches: BatchesFrom,
    *,
    dev: Batch | None = None,
    workdir: Path | None = None,
    stored: Mapping = NO_DEFAULTS,
    title: str = "training",
) -> Outcome:
    """Train a network on one device, and leave it with its averaged weights.

    The score, if any, is the loss of the batch `dev` with averaged weights. config.json holds
    `stored`, of which only the loop may change. Without `workdir`, a signal interrupts the run as
    it would any other work.
    """
    with TrainingRun(workdir, log=print if workdir else lambda line: None) as run:
        run.claim(dict(stored), ("loop",))
        state = TrainState(network, optimizer, loop.num_steps)
        evaluate = None if dev is None else functools.partial(_score_average, state, loss, dev)
        outcome = run.train(state, loss, loop, batches, lambda: evaluate, title=title)
    state.use_average()
    if workdir is None and outcome.exit_status:  # what follows must not have half-trained weights
        signal.raise_signal(outcome.exit_status - 128)
    return outcome


def _score_average(
    state: TrainState, loss: LossFn, dev: Batch, log: MetricsLog, step: int
) -> float:
    with state.swap_in_average():
        value, parts = loss(dev)
    log.scalars(step, {f"dev_{name}": float(part) for name, part in parts.items()})
    return float(value)


class PortableBatches(NamedTuple):
    """Batches for a machine without TensorFlow; the setting "file" is the data file's name."""

    module: ModuleType
    settings: dict[str, Any]
    write: Callable[[Path], None]


@dataclasses.dataclass(frozen=True)
class Setup:
    """A model with everything that is needed to train it; see `TrainingRun.train`."""

    state: TrainState
    loss: LossFn
    batches: BatchesFrom
    evaluation: Callable[[], Evaluate]
    portable: PortableBatches
    start: Callable[[], None] | None = None
    frozen: Mapping[str, tf.Variable] = dataclasses.field(default_factory=dict)
    description: str = ""
    # With linear prediction, the loss in TensorFloat32 was not finite after 20 steps on an H100.
    tensor_float_32: bool = True
    # From the specs of a batch to what an exported folder records of the model as a pipeline.
    stages: Callable[[Mapping[str, tf.TensorSpec]], Any] = lambda specs: {}


@dataclasses.dataclass(frozen=True)
class Recipe(abc.ABC):
    """A choice of model, data and training; each family has a subclass."""

    preset: str
    config: Any
    data: Any
    teacher: Any = None
    teacher_path: Any = None

    things: ClassVar[str]  # what the data are, "recordings" or "images"
    changeable: ClassVar[Keys]  # keys of config.json that may change when a run is resumed
    keeps: ClassVar[Keys] = ()  # names of files that a run stores next to its checkpoints

    @classmethod
    def of(cls, preset: str, given: Any) -> "Recipe":
        """Return the recipe of a preset's command-line options."""
        return cls(preset, given.config, given.data)

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
