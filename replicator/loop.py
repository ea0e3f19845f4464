"""The training loop: steps, checkpoints, evaluation, and a clean way out."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import tensorflow as tf

from replicator.errors import UserError
from replicator.interrupt import StopRequest
from replicator.metrics import MetricsLog
from replicator.progress import Progress, duration
from replicator.run_directory import RunDirectory
from replicator.state import Batch, LossFn, TrainState

DONE, FINISHED_BEFORE, OUT_OF_TIME = "done", "finished before", "time"
Evaluate = Callable[[MetricsLog, int], float]


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long to train and how often to look; may change when a run is resumed."""

    num_steps: int = 10_000
    """Updates in all; a resumed run counts those it has made. A cosine decay ends here."""
    max_minutes: float = 0.0
    """Stop (and save) after so many minutes of this run; 0: no limit."""
    report_every_steps: int = 20
    """Steps between two lines of metrics."""
    evaluate_every_steps: int = 1000
    """Steps between two evaluations on dev; there is one at the end too."""
    save_every_minutes: float = 5.0
    """Minutes between two checkpoints, beside those at evaluations and at the end."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept, beside the best on dev."""
    jit_compile: bool = False
    """Compile the step with XLA."""

    def __post_init__(self):
        """Raises ValueError, naming the field, for a number out of range."""
        for name in ("num_steps", "report_every_steps", "evaluate_every_steps", "keep_checkpoints"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        for name in ("max_minutes", "save_every_minutes"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"`{name}` must be 0 or more, got {getattr(self, name)}.")


class DivergedError(UserError):
    """The loss was not a finite number; what was learnt before is on disk."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How training ended.

    reason: DONE, FINISHED_BEFORE (no step was left to make), OUT_OF_TIME, or the name of the signal
    that stopped it. best_score: of the best checkpoint on dev, None before any evaluation.
    """

    step: int
    reason: str
    seconds: float
    best_score: float | None

    @property
    def exit_status(self) -> int:
        """0, or 128 + the signal that stopped it."""
        named = self.reason in signal.Signals.__members__
        return 128 + signal.Signals[self.reason] if named else 0

    def in_words(self, workdir: Path, score: str, following: str) -> str:
        """How it ended and what to do next, as a line.

        Args:
          workdir: the run directory.
          score: what the best score is, with a place for it, as in "best dev {:.3f} bits/sample".
          following: the next thing to do when all is done.
        """
        best = "" if self.best_score is None else f", {score.format(self.best_score)}"
        if self.reason == FINISHED_BEFORE:
            return (
                f"{workdir} has made all its steps ({self.step}{best}); a larger "
                f"--loop.num-steps goes on. {following}"
            )
        if self.reason != DONE:
            following = "The same command goes on from there."
        return (
            f"Stopped at step {self.step} ({self.reason}) after {duration(self.seconds)}"
            f"{best}. {following}"
        )


class Trainer:
    """Moves a TrainState through batches inside a run directory."""

    def __init__(self, run: RunDirectory, state: TrainState, loss_fn: LossFn, config: LoopConfig):
        self.run, self.state, self.config = run, state, config
        self.checkpoints = run.checkpoints(config.keep_checkpoints)
        self._step = compile_step(state, loss_fn, config.jit_compile)
        self._saved_step: int | None = None

    def resume(self) -> list[str]:
        """Restores the newest whole checkpoint; gives a line for each damaged one passed over."""
        self.checkpoints.remove_leftovers()
        arrays, damaged = self.checkpoints.newest()
        if arrays is not None:
            self.state.restore(arrays)
            self._saved_step = self.step
        for path in damaged:
            path.rename(path.with_suffix(".damaged"))
        return [
            f"{path} is damaged and was set aside (.damaged); going on from step {self.step}."
            for path in damaged
        ]

    @property
    def step(self) -> int:
        """Updates made so far."""
        return int(self.state.step.numpy())

    def train(self, batches: Iterable[Batch], evaluate: Evaluate) -> Outcome:
        """Trains to the end, or to a wish to stop, and saves.

        Args:
          batches: from the current step on, endless.
          evaluate: called with the log and the step; gives the score on dev (lower is better).

        Raises:
          DivergedError: a loss or gradient was not finite; that update is not made.
          UserError: something could not be written, or does not fit into memory. The state is
            saved all the same where that is possible, and the message says which step is on disk.
        """
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(StopRequest())
            progress = stack.enter_context(
                Progress(self.config.num_steps, "training", "step", self.step)
            )
            reason = self._guarded(batches, evaluate, progress, stop, start)
        return Outcome(self.step, reason, time.monotonic() - start, self.checkpoints.best_score())

    def save(self) -> None:
        """Writes a checkpoint, unless this step already has one."""
        if self._saved_step != self.step:
            self.checkpoints.save(self.step, self.state.arrays())
            self._saved_step = self.step

    def _guarded(self, batches, evaluate, progress, stop, start) -> str:
        """The reason why `_steps` ended; whatever it could not write, the state is saved."""
        try:
            with contextlib.closing(MetricsLog(self.run.path, self.step)) as log:
                reason = self._steps(batches, _Looks(evaluate, log, progress), stop, start)
                self.save()
        except DivergedError:
            raise
        except tf.errors.ResourceExhaustedError as error:
            raise UserError(
                f"A step does not fit into memory; fewer or shorter clips in a batch may. "
                f"{self._rescued()}"
            ) from error
        except (UserError, OSError) as error:
            raise UserError(f"{_sentence(error)} {self._rescued()}") from error
        return reason

    def _steps(self, batches, looks: "_Looks", stop, start) -> str:
        if self._owes_evaluation():
            self._evaluate(looks)
        if self.step >= self.config.num_steps:
            return FINISHED_BEFORE
        config, pace, saved = self.config, _Pace(), time.monotonic()
        batches = iter(batches)
        while True:
            metrics = self._made(batches, pace)
            step = self.step
            looks.progress.advance(loss=metrics["loss"])
            if step % config.report_every_steps == 0:
                looks.log.scalars(step, metrics | pace.taken())
            if self._evaluation_due():
                self._evaluate(looks)
                saved = time.monotonic()
            if time.monotonic() - saved > 60 * config.save_every_minutes:
                self.save()
                saved = time.monotonic()
            if step >= config.num_steps:
                return DONE
            if stop.signal_name:
                looks.progress.say(f"{stop.signal_name}: saving at step {step} and leaving.")
                return stop.signal_name
            if 0 < 60 * config.max_minutes < time.monotonic() - start:
                return OUT_OF_TIME

    def _made(self, batches: Iterator[Batch], pace: "_Pace") -> dict[str, float]:
        """The metrics of one more update."""
        before = self.step
        with pace.running():
            metrics = {name: float(value) for name, value in self._step(next(batches)).items()}
        if self.step == before:
            raise self._diverged(metrics["loss"], metrics["gradient_norm"])
        return metrics

    def _evaluation_due(self) -> bool:
        step, config = self.step, self.config
        return step % config.evaluate_every_steps == 0 or step == config.num_steps

    def _owes_evaluation(self) -> bool:
        """Whether the process before this one was killed between saving and evaluating."""
        return (
            self.step > 0 and self._evaluation_due() and self.checkpoints.scored_step() != self.step
        )

    def _evaluate(self, looks: "_Looks") -> None:
        self.save()
        score = looks.evaluate(looks.log, self.step)
        best = self.checkpoints.mark_scored(self.step, score)
        looks.progress.say(f"step {self.step}: dev {score:.4f}{' (best)' if best else ''}")

    def _diverged(self, loss: float, norm: float) -> DivergedError:
        # Nothing is deleted: a state that gives no finite loss may itself be worth nothing.
        if self._saved_step != self.step:
            self.checkpoints.save(self.step, self.state.arrays(), keep_all=True)
            self._saved_step = self.step
        steps = ", ".join(str(step) for step in self.checkpoints.steps())
        return DivergedError(
            f"Step {self.step + 1} gave loss {loss:.4g} and gradient norm {norm:.4g} and was not "
            f"made; {self.checkpoints.folder} holds the state before it and earlier ones (step "
            f"{steps}). Try a lower --optimizer.learning-rate in another --workdir."
        )

    def _rescued(self) -> str:
        """Saves the state if it can; which step is on disk, as a sentence."""
        if not self.step:
            return "No step was made."
        try:
            self.save()
        except UserError:
            steps = self.checkpoints.steps()
            held = f"the newest checkpoint is step {steps[-1]}" if steps else "nothing is saved yet"
            return f"Training stopped at step {self.step}; {held}."
        return f"Training stopped; step {self.step} is saved in {self.checkpoints.folder}."


@dataclasses.dataclass(frozen=True)
class _Looks:
    """Where figures go."""

    evaluate: Evaluate
    log: MetricsLog
    progress: Progress


class _Pace:
    """Steps per second, the time between steps and the first step (it compiles) left aside."""

    def __init__(self):
        self._steps, self._seconds = -1, 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Around a step and the wait for its batch."""
        start = time.perf_counter()
        yield
        self._steps += 1
        if self._steps:
            self._seconds += time.perf_counter() - start

    def taken(self) -> dict[str, float]:
        """The figure since the last call, empty if there is none yet."""
        steps, seconds = self._steps, self._seconds
        self._steps, self._seconds = 0, 0.0
        return {"steps_per_second": steps / seconds} if seconds > 0 else {}


def compile_step(state: TrainState, loss_fn: LossFn, jit_compile: bool):
    """A function from a batch to the metrics of one update, which it makes.

    An update whose loss or gradient is not finite is not made.
    """

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(batch: Batch):
        values, metrics = state.update(loss_fn, batch)
        good = tf.math.is_finite(metrics["loss"]) & tf.math.is_finite(metrics["gradient_norm"])
        for variable, value in zip(state.slots().values(), values, strict=True):
            variable.assign(tf.where(good, value, variable))
        return metrics

    return step


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"Cannot write {error.filename or 'a file'}: {error.strerror or error}."
    return str(error)
