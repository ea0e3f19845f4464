"""The training loop: steps, checkpoints, evaluation and stopping.

All processes of a replicator run the same steps; the chief evaluates and writes as others wait.
"""

import contextlib
import dataclasses
import io
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.foundation.interrupt import SIGNALS, StopRequest
from onepass.foundation.metrics import MetricsLog
from onepass.foundation.progress import Progress, duration, during
from onepass.foundation.rules import UserError
from onepass.foundation.run_directory import NoMetricsLog, RunDirectory
from onepass.replicator import strategies
from onepass.replicator.strategies import Replicator, coordination
from onepass.replicator.strategies.base import ShardFn, whole
from onepass.replicator.training.batches import Batch
from onepass.replicator.training.config import LoopConfig
from onepass.replicator.training.state import (
    LossFn,
    TrainState,
    assign_arrays,
    compile_replicated_step,
    compile_step,
    is_single_device,
)

DONE, FINISHED_BEFORE, OUT_OF_TIME = "done", "finished before", "time"
NOTHING_TO_TRAIN, NO_IMPROVEMENT, CALLBACK = "nothing to train", "no improvement", "callback"
SAVE = "save"  # request to wait while the chief writes a timed checkpoint
# Settings that must be equal in all processes of a run.
SHARED_SETTINGS = ("num_steps", "evaluate_every_steps", "jit_compile", "patience")
SIGNAL_NAMES = tuple(number.name for number in SIGNALS)
Evaluate = Callable[[Any, int], float]  # function from a MetricsLog and the step to a score
Batches = Iterable[Batch] | ShardFn
Metrics = Mapping[str, tf.Tensor]


class Listener:
    """A receiver of the events of `Trainer.train` in the chief; this base class ignores them.

    Methods that return a bool return True to end training after the current update.
    """

    def begin(self, step: int) -> None:
        """Handle the beginning, or resumption, of training after `step` updates."""

    def updating(self, step: int) -> None:
        """Handle the start of the update to `step`."""

    def on_update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Handle the metrics of the update to `step`, the same as in the log."""
        return False

    def on_score(self, step: int, metrics: Mapping[str, float], score: float | None) -> bool:
        """Handle the score at `step`, or None; no `metrics` if an earlier process updated."""
        return False

    def end(self) -> None:
        """Handle the end of training without an error."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The state of a training run at its end.

    Attributes:
      reason: DONE, FINISHED_BEFORE (no step was left), OUT_OF_TIME, NOTHING_TO_TRAIN (all weights
        are frozen), NO_IMPROVEMENT (for `patience` scores), CALLBACK (a callback asked to stop), or
        the name of the signal that stopped training.
      best_score, best_step: score and step of the best checkpoint on the dev set; None before the
        first evaluation.
    """

    step: int
    reason: str
    seconds: float
    best_score: float | None
    best_step: int | None = None
    scores: tuple[tuple[int, float], ...] = ()

    @property
    def exit_status(self) -> int:
        """Exit status of the command: 0, or 128 plus the number of the signal that stopped it."""
        named = self.reason in signal.Signals.__members__
        return 128 + signal.Signals[self.reason] if named else 0

    def summary(self, workdir: Path, score: str, following: str) -> str:
        """Return a line: why training ended, the best score by the format `score`, and advice."""
        best = "" if self.best_score is None else f", {score.format(self.best_score)}"
        if self.best_step not in (None, self.step):
            best += f" at step {self.best_step}, used by evaluate, sample and export"
        if self.reason == FINISHED_BEFORE:
            return (
                f"{workdir} has completed all its steps ({self.step}{best}); a larger "
                f"--loop.num-steps continues. {following}"
            )
        if self.reason not in (DONE, NO_IMPROVEMENT):
            following = "Rerun the same command to resume."
        return (
            f"Stopped at step {self.step} ({self.reason}) after {duration(self.seconds)}"
            f"{best}. {following}"
        )


class StepRate:
    """Steps per second, excluding the time between steps and the first step, which compiles."""

    def __init__(self) -> None:
        self._steps, self._seconds = -1, 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measure a step and the wait for its batch."""
        start = time.perf_counter()
        yield
        self._steps += 1
        if self._steps:
            self._seconds += time.perf_counter() - start

    def since_last(self) -> dict[str, float]:
        """Return "steps_per_second" since the last call; {} if no steps were measured."""
        steps, seconds = self._steps, self._seconds
        self._steps, self._seconds = 0, 0.0
        return {"steps_per_second": steps / seconds} if seconds > 0 else {}


class DivergedError(UserError):
    """A loss or gradient was not finite; the state before it is on disk."""


class Trainer:
    """Trains a TrainState on batches, with a run directory."""

    def __init__(
        self,
        run: RunDirectory,
        state: TrainState,
        loss_fn: LossFn,
        config: LoopConfig,
        replicator: Replicator | None = None,
        reads: Sequence[tf.Variable] = (),
    ):
        self.run, self.state, self.config = run, state, config
        self.replicator = strategies.single() if replicator is None else replicator
        self.checkpoints = run.checkpoints(config.keep_checkpoints, best=config.patience > 0)
        reasons = (SAVE, CALLBACK, OUT_OF_TIME, *SIGNAL_NAMES)
        self._stop_request = coordination.SharedStopRequest(reasons, self.replicator)
        self._step = self._compile_update(loss_fn, reads)
        self._num_updates = 0  # finished updates; asynchronous ones may be pending
        self._saved_step: int | None = None
        self._start: float | None = None  # start of this run on the monotonic clock
        self._evaluation_seconds = 0.0  # duration of the last evaluation
        self._is_asked_to_stop = False  # by the listener

    def resume(self, initialise: Callable[[], None] | None = None) -> list[str]:
        """Restore the newest readable checkpoint; return notes, also on damaged newer ones.

        Without a checkpoint, `initialise` prepares the state in the chief.
        """
        self._start = time.monotonic()
        lines = self._restore_newest() if self.replicator.is_chief else []
        if initialise is not None and self.replicator.is_chief and not self.step:
            initialise()
        loop = {name: getattr(self.config, name) for name in SHARED_SETTINGS}
        coordination.broadcast_initial_state(
            self.replicator, self.state.slots(), {**self.run.identity, "loop": loop}
        )
        return [*self.run.notes, *lines]

    def _restore_newest(self) -> list[str]:
        arrays, damaged = self.checkpoints.newest()
        if arrays is not None:
            self.state.restore(arrays)
            self._saved_step = self.step
        for path in damaged:
            path.rename(path.with_suffix(".damaged"))
        renamed = f"is damaged and was renamed (.damaged); resuming from step {self.step}."
        return [f"{path} {renamed}" for path in damaged]

    def _compile_update(self, loss_fn: LossFn, reads: Sequence[tf.Variable]) -> Any:
        state, jit_compile = self.state, self.config.jit_compile
        if is_single_device(self.replicator):
            one = compile_step(state, loss_fn, jit_compile)
            return lambda batches: one(next(batches))
        metrics = self._stop_request.metric_variables
        return compile_replicated_step(state, loss_fn, jit_compile, self.replicator, metrics, reads)

    @property
    def step(self) -> int:
        """Number of updates so far."""
        return int(self.state.step.numpy())

    def train(
        self,
        batches: Iterable[Batch] | ShardFn,
        evaluate: Evaluate | None,
        listener: Listener | None = None,
        title: str = "training",
    ) -> Outcome:
        """Train until the last step or a stop request, and save; see `TrainingRun.train`.

        `LoopConfig.max_minutes` are counted from `resume`, or from this call without it. With
        `LoopConfig.patience`, the state's average finally becomes the one with the best score.
        """
        start = time.monotonic() if self._start is None else self._start
        limit, total = 60 * self.config.max_minutes, self.config.num_steps
        until = start + limit if limit else None
        stream = None if self.replicator.is_chief else io.StringIO()
        shown = Progress(total, title, "step", self.step, stream=stream, until=until)
        with StopRequest() as stop, shown as progress:
            heard = listener if listener is not None and self.replicator.is_chief else Listener()
            training = _Training(evaluate, heard, progress, stop, start)
            reason = self._train_and_save(batches, training)
        if self.config.patience:
            slots = self.state.average_slots()
            best = self.checkpoints.best() if self.replicator.is_chief else None
            if best is not None:
                assign_arrays(slots, best)
            coordination.broadcast_initial_state(self.replicator, slots, {})
        return Outcome(
            self.step,
            reason,
            time.monotonic() - start,
            best_score=self.checkpoints.best_score(),
            best_step=self.checkpoints.best_step(),
            scores=tuple(self.checkpoints.scores()),
        )

    def save(self) -> None:
        """Finish pending updates; in the chief, write a checkpoint unless this step has one."""
        if self.replicator.is_async:
            for metrics in self._step.join():
                self._check(metrics)
        self._num_updates = self.step
        self._save_step()

    def _save_step(self, keep_all: bool = False) -> None:
        step = self.step
        if self.replicator.is_chief and self._saved_step != step:
            self.checkpoints.save(step, self.state.arrays(), keep_all)
            self._saved_step = step

    def _train_and_save(self, batches: Batches, training: "_Training") -> str:
        try:
            with contextlib.ExitStack() as stack:
                if self.replicator.is_chief:
                    log = contextlib.closing(self.run.metrics_log(self.step))
                    training.log = stack.enter_context(log)
                training.listener.begin(self.step)
                reason = self._steps(batches, training)
                self.save()
                training.listener.end()
            coordination.barrier(self.replicator)
        except DivergedError:
            raise
        except tf.errors.ResourceExhaustedError as error:
            raise UserError(
                f"A step does not fit into memory; fewer or shorter clips per batch may fit. "
                f"{self._save_after_error()}"
            ) from error
        except OSError as error:
            said = f"Cannot write {error.filename or 'a file'}: {error.strerror or error}."
            raise UserError(f"{said} {self._save_after_error()}") from error
        except UserError as error:
            lost = isinstance(error, coordination.PeerLostError)
            again = " Rerun the same commands to resume." if lost else ""
            raise UserError(f"{error} {self._save_after_error()}{again}") from error
        return reason

    def _steps(self, batches: Batches, training: "_Training") -> str:
        self._num_updates = step = self.step
        if step and self._evaluation_due(step) and self.checkpoints.scored_step() != step:
            self._evaluate(training, {})
        if ended := self._reason_of_scores():
            return ended
        if self.step >= self.config.num_steps:
            return FINISHED_BEFORE
        rate, training.saved_at = StepRate(), time.monotonic()
        is_single = is_single_device(self.replicator)
        batches = iter(whole(batches) if is_single else self.replicator.batches(batches))
        while True:
            self._stop_request.request(self._request(training))
            training.listener.updating(self._num_updates + 1)
            metrics = self._one_update(batches, rate)
            # This comes first, because saving waits for pending updates, which change the step.
            if self._stop_request.decide_stop(self._request(training)) == SAVE:
                self.save()
                # Otherwise the others would exceed a collective's time limit.
                coordination.barrier(self.replicator)
                training.saved_at = time.monotonic()
            step = self._report(metrics, training, rate)
            if self._evaluation_due(step):
                self._evaluate(training, metrics)
                if ended := self._reason_of_scores():
                    return ended
                training.saved_at = time.monotonic()
            if step >= self.config.num_steps:
                return DONE
            reason = self._stop_request.decide_stop(self._request(training))
            if reason and reason != SAVE:
                self._leave(reason, step, training, metrics)
                return reason

    def _report(self, metrics: dict[str, float], training: "_Training", rate: StepRate) -> int:
        before, step = training.progress.done, self._num_updates
        training.progress.advance(step - before, loss=metrics["loss"])
        every = self.config.report_every_steps
        is_due = step // every > before // every or self._evaluation_due(step)
        if training.log is not None and is_due:
            training.log.scalars(step, metrics | rate.since_last())
        self._is_asked_to_stop |= training.listener.on_update(step, metrics)
        return step

    def _reason_of_scores(self) -> str | None:
        coordination.barrier(self.replicator)
        patience, waited = self.config.patience, self.checkpoints.scores_without_improvement
        no_more = bool(patience) and waited(self.step) >= patience
        reasons = (None, CALLBACK, NO_IMPROVEMENT)
        own = NO_IMPROVEMENT if no_more else CALLBACK if self._is_asked_to_stop else None
        return reasons[coordination.of_chief(self.replicator, reasons.index(own))]

    def _leave(self, reason: str, step: int, training: "_Training", metrics: Metrics) -> None:
        if reason in SIGNAL_NAMES:
            training.progress.say(f"{reason}: saving a checkpoint at step {step} and exiting.")
        elif not self._evaluation_due(step):
            self._evaluate(training, metrics)
            coordination.barrier(self.replicator)

    def _request(self, training: "_Training") -> str | None:
        now = time.monotonic()
        if training.stop.signal_name:
            return training.stop.signal_name
        limit = 60 * self.config.max_minutes
        if limit and now - training.start > limit - min(self._evaluation_seconds, limit / 2):
            return OUT_OF_TIME
        if self._is_asked_to_stop:
            return CALLBACK
        since = now - training.saved_at
        is_due = self.replicator.is_chief and since > 60 * self.config.save_every_minutes
        return SAVE if is_due else None

    def _one_update(self, batches: Iterator[Batch], rate: StepRate) -> dict[str, float]:
        with rate.running():
            if self.replicator.is_async:
                # No update beyond the next evaluation is scheduled.
                every = self.config.evaluate_every_steps
                left = self.config.num_steps - self._num_updates
                left = min(left, every - self._num_updates % every)
                metrics = self._step(batches, max_pending=left)
                self._num_updates += 1
            else:
                metrics = self._stop_request.take_from(self._step(batches))
                self._num_updates = self.step
            metrics = {name: float(value) for name, value in metrics.items()}
        self._check(metrics)
        return metrics

    def _check(self, metrics: Mapping[str, float]) -> None:
        loss, norm = float(metrics["loss"]), float(metrics["gradient_norm"])
        if math.isfinite(loss) and math.isfinite(norm):
            return
        # Nothing is deleted, because an earlier state is needed if the state itself is the cause.
        self._save_step(keep_all=True)
        raise DivergedError(
            f"Step {self.step + 1} had loss {loss:.4g} and gradient norm {norm:.4g} and was not "
            f"applied; {self.checkpoints.after_divergence()}"
        )

    def _evaluation_due(self, step: int) -> bool:
        return step % self.config.evaluate_every_steps == 0 or step == self.config.num_steps

    def _evaluate(self, training: "_Training", metrics: Mapping[str, float]) -> None:
        if training.log is None or (training.evaluate is None and not metrics):
            return
        score = None if training.evaluate is None else self._score_step(training, training.evaluate)
        self._is_asked_to_stop |= training.listener.on_score(self.step, metrics, score)

    def _score_step(self, training: "_Training", evaluate: Evaluate) -> float:
        self.save()
        start = time.monotonic()
        try:
            what = during(f"step {self.step}: scoring on dev")
            with self.replicator.gathered_variables(), what:
                score = evaluate(training.log, self.step)
        except tf.errors.ResourceExhaustedError as error:
            text = f"The evaluation on dev at step {self.step} does not fit into memory."
            raise UserError(text) from error
        self._evaluation_seconds = time.monotonic() - start
        best = self.checkpoints.mark_scored(self.step, score)
        training.progress.say(f"step {self.step}: dev {score:.4f}{' (best)' if best else ''}")
        return score

    def _save_after_error(self) -> str:
        if not self._num_updates:
            return "No step was completed."
        if not self.replicator.is_chief:
            return f"Training stopped at step {self._num_updates}, which the first process saves."
        try:
            self.save()
        except (UserError, tf.errors.OpError):
            kept = self.checkpoints.describe_save(None)
            return f"Training stopped at step {self._num_updates}; {kept}."
        return f"Training stopped; {self.checkpoints.describe_save(self.step)}."


@dataclasses.dataclass
class _Training:
    evaluate: Evaluate | None
    listener: Listener
    progress: Progress
    stop: StopRequest
    start: float
    saved_at: float = 0.0
    log: MetricsLog | NoMetricsLog | None = None
