"""The training loop: steps, checkpoints, evaluation, and a clean way out."""

import dataclasses
import time
from collections.abc import Callable, Iterable

import tensorflow as tf

from replicator.errors import UserError
from replicator.interrupt import StopRequest
from replicator.metrics import MetricsLog
from replicator.progress import Progress
from replicator.run_directory import RunDirectory
from replicator.state import Batch, LossFn, TrainState


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long to train and how often to look."""

    num_steps: int = 10_000
    """Updates in all; a resumed run counts those it has made."""
    max_minutes: float = 0.0
    """Stop (and save) after so many minutes of this run; 0: no limit."""
    report_every_steps: int = 20
    """Steps between two lines of metrics."""
    evaluate_every_steps: int = 1000
    """Steps between two evaluations on dev."""
    save_every_minutes: float = 5.0
    """Minutes between two checkpoints, beside those at evaluations and at the end."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept, beside the best on dev."""
    jit_compile: bool = False
    """Compile the step with XLA."""


class Diverged(UserError):
    """The loss was not a finite number; the last good state is on disk."""


@dataclasses.dataclass
class Outcome:
    """How training ended."""

    step: int
    reason: str
    seconds: float
    best_score: float | None


class Trainer:
    """Moves a TrainState through batches inside a run directory."""

    def __init__(self, run: RunDirectory, state: TrainState, loss_fn: LossFn, config: LoopConfig):
        self.run, self.state, self.config = run, state, config
        self.checkpoints = run.checkpoints(config.keep_checkpoints)
        self._step = compile_step(state, loss_fn, config.jit_compile)
        self._saved_step: int | None = None
        self.score: float | None = None

    def resume(self) -> list[str]:
        """Restores the newest whole checkpoint; gives a line for each damaged one passed over."""
        arrays, damaged = self.checkpoints.newest()
        for path in damaged:
            path.rename(path.with_suffix(".damaged"))
        if arrays is not None:
            self.state.restore(arrays)
            self._saved_step = self.step
        return [
            f"{path} is damaged and was set aside (.damaged); going on from step {self.step}."
            for path in damaged
        ]

    @property
    def step(self) -> int:
        """Updates made so far."""
        return int(self.state.step.numpy())

    def train(
        self, batches: Iterable[Batch], evaluate: Callable[[MetricsLog, int], float]
    ) -> Outcome:
        """Trains to the end, or to a wish to stop, and saves.

        Args:
          batches: from the current step on, endless.
          evaluate: called with the log and the step; gives the score on dev (lower is better).

        Raises Diverged after a loss or gradient that is not finite; that update is not made.
        """
        log = MetricsLog(self.run.path, self.step)
        start = time.monotonic()
        with (
            StopRequest() as stop,
            Progress(self.config.num_steps, "training", "step", self.step) as progress,
        ):
            reason = self._steps(iter(batches), evaluate, log, progress, stop, start)
            self.save()
        log.close()
        return Outcome(self.step, reason, time.monotonic() - start, self.score)

    def save(self) -> None:
        """Writes a checkpoint, unless this step already has one."""
        if self._saved_step != self.step:
            self.checkpoints.save(self.step, self.state.arrays())
            self._saved_step = self.step

    def _steps(self, batches, evaluate, log, progress, stop, start) -> str:
        saved = reported = time.monotonic()
        while self.step < self.config.num_steps:
            before = self.step
            metrics = self._step(next(batches))
            step = self.step
            if step == before:
                raise self._diverged(float(metrics["loss"]), float(metrics["gradient_norm"]))
            progress.advance(loss=float(metrics["loss"]))
            if step % self.config.report_every_steps == 0:
                now = time.monotonic()
                rate = self.config.report_every_steps / (now - reported)
                log.scalars(
                    step, {k: float(v) for k, v in metrics.items()} | {"steps_per_second": rate}
                )
                reported = now
            if step % self.config.evaluate_every_steps == 0 or step == self.config.num_steps:
                self._evaluate(evaluate, log, progress)
                saved = time.monotonic()
            if time.monotonic() - saved > 60 * self.config.save_every_minutes:
                self.save()
                saved = time.monotonic()
            if stop.signal_name:
                progress.say(f"{stop.signal_name}: saving at step {step} and leaving.")
                return stop.signal_name
            if 0 < self.config.max_minutes * 60 < time.monotonic() - start:
                return "time"
        return "done"

    def _evaluate(self, evaluate, log, progress) -> None:
        self.save()
        self.score = evaluate(log, self.step)
        best = self.checkpoints.mark_best(self.step, self.score)
        progress.say(f"step {self.step}: dev {self.score:.4f}{' (best)' if best else ''}")

    def _diverged(self, loss: float, norm: float) -> Diverged:
        self.save()
        return Diverged(
            f"Step {self.step + 1} gave loss {loss:.4g} and gradient norm {norm:.4g}; "
            f"the last good state, step {self.step}, is saved in "
            f"{self.checkpoints.folder}. Try a lower --optimizer.learning-rate."
        )


def compile_step(state: TrainState, loss_fn: LossFn, jit_compile: bool):
    """A function from a batch to the metrics of one update, which it makes.

    An update whose loss is not finite is not made.
    """

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(batch: Batch):
        values, metrics = state.update(loss_fn, batch)
        good = tf.math.is_finite(metrics["loss"]) & tf.math.is_finite(metrics["gradient_norm"])
        for variable, value in zip(state.slots().values(), values, strict=True):
            variable.assign(tf.where(good, value, variable))
        return metrics

    return step
