"""The training loop: steps, checkpoints, evaluation, and a clean way out.

Several processes may run it together, see `Replicator`: all make the same steps and stop after the
same one; the chief alone evaluates and writes while the others wait.
"""

import contextlib
import dataclasses
import io
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from replicator import strategies
from replicator.runs.errors import UserError
from replicator.runs.interrupt import SIGNALS, StopRequest
from replicator.runs.metrics import MetricsLog
from replicator.runs.progress import Progress, duration
from replicator.runs.run_directory import RunDirectory
from replicator.strategies import Replicator
from replicator.strategies.coordination import Wishes, agree, meet
from replicator.strategies.peer_errors import PeerGoneError
from replicator.training.accumulation import Batch
from replicator.training.config import LoopConfig
from replicator.training.state import LossFn, TrainState
from replicator.training.step import compile_shared_step, compile_step, is_alone

DONE, FINISHED_BEFORE, OUT_OF_TIME = "done", "finished before", "time"
COMMON = ("num_steps", "evaluate_every_steps", "jit_compile")  # to the processes of a run
SIGNAL_NAMES = tuple(number.name for number in SIGNALS)
Evaluate = Callable[[MetricsLog, int], float]


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
    """Moves a TrainState through batches inside a run directory.

    Args:
      run: of which this process is the writer, if it is the chief.
      state, loss_fn: made in the scope of `replicator`, with every variable that the loss reads.
      config: how long.
      replicator: on what; None: on one device.
      reads: the variables that the loss reads beside the state.
    """

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
        self.checkpoints = run.checkpoints(config.keep_checkpoints)
        self._wishes = Wishes((OUT_OF_TIME, *SIGNAL_NAMES), self.replicator)
        self._step = self._compiled(loss_fn, reads)
        self._known = 0  # updates that have come back; asynchronous, there may be more
        self._saved_step: int | None = None

    def resume(self, begin: Callable[[], None] | None = None) -> list[str]:
        """Restores the newest whole checkpoint; gives a line for each damaged one passed over.

        Args:
          begin: called, by the chief alone, where there is no checkpoint, to prepare the state.

        Raises:
          UserError: other processes of the run are gone, or have another configuration.
        """
        lines = self._restored() if self.replicator.is_chief else []
        if begin is not None and self.replicator.is_chief and not self.step:
            begin()
        loop = {name: getattr(self.config, name) for name in COMMON}
        agree(self.replicator, self.state.slots(), {**self.run.identity, "loop": loop})
        return lines

    def _restored(self) -> list[str]:
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

    def _compiled(self, loss_fn: LossFn, reads: Sequence[tf.Variable]):
        """A function from an iterator to the metrics of one update."""
        if is_alone(self.replicator):
            one = compile_step(self.state, loss_fn, self.config.jit_compile)
            return lambda batches: one(next(batches))
        jit, told = self.config.jit_compile, self._wishes.told
        return compile_shared_step(self.state, loss_fn, jit, self.replicator, told, reads)

    @property
    def step(self) -> int:
        """Updates made so far."""
        return int(self.state.step.numpy())

    def train(self, batches: Iterable[Batch], evaluate: Evaluate | None) -> Outcome:
        """Trains to the end, or to a wish to stop, and saves.

        Args:
          batches: of the whole run, from the current step on, endless; a tf.data.Dataset where
            there is more than one device.
          evaluate: called with the log and the step; gives the score on dev (lower is better). The
            chief's alone is needed.

        Raises:
          DivergedError: a loss or gradient was not finite; that update is not made.
          UserError: something could not be written, or does not fit into memory, or another
            process is gone. The state is saved all the same where that is possible, and the message
            says which step is on disk.
        """
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(StopRequest())
            stream = None if self.replicator.is_chief else io.StringIO()
            progress = stack.enter_context(
                Progress(self.config.num_steps, "training", "step", self.step, stream=stream)
            )
            reason = self._guarded(batches, evaluate, progress, stop, start)
        return Outcome(self.step, reason, time.monotonic() - start, self.checkpoints.best_score())

    def save(self) -> None:
        """Writes a checkpoint, unless this step already has one or another process is the chief."""
        self._settle()
        if self.replicator.is_chief and self._saved_step != self._known:
            self.checkpoints.save(self._known, self.state.arrays())
            self._saved_step = self._known

    def _settle(self) -> None:
        """Waits for asynchronous updates that are under way."""
        if self.replicator.is_async:
            for metrics in self._step.join():
                self._check(metrics)
        self._known = self.step

    def _guarded(self, batches, evaluate, progress, stop, start) -> str:
        """The reason why `_steps` ended; whatever it could not write, the state is saved."""
        try:
            with self._log() as log:
                reason = self._steps(batches, _Looks(evaluate, log, progress), stop, start)
                self.save()
            meet(self.replicator)
        except DivergedError:
            raise
        except tf.errors.ResourceExhaustedError as error:
            raise UserError(
                f"A step does not fit into memory; fewer or shorter clips in a batch may. "
                f"{self._rescued()}"
            ) from error
        except (UserError, OSError) as error:
            again = " The same commands go on from there." if _is_of_peers(error) else ""
            raise UserError(f"{_sentence(error)} {self._rescued()}{again}") from error
        return reason

    def _log(self) -> contextlib.AbstractContextManager:
        if not self.replicator.is_chief:
            return contextlib.nullcontext()
        return contextlib.closing(MetricsLog(self.run.path, self.step))

    def _steps(self, batches, looks: "_Looks", stop, start) -> str:
        self._known = self.step
        if self._owes_evaluation():
            self._evaluate(looks)
        meet(self.replicator)
        if self.step >= self.config.num_steps:
            return FINISHED_BEFORE
        config, pace, saved = self.config, _Pace(), time.monotonic()
        batches = iter(batches if is_alone(self.replicator) else self.replicator.batches(batches))
        while True:
            self._wishes.tell(self._wish(stop, start))
            metrics = self._made(batches, pace)
            step = self._known
            looks.progress.advance(step - looks.progress.done, loss=metrics["loss"])
            if looks.log is not None and step % config.report_every_steps == 0:
                looks.log.scalars(step, metrics | pace.taken())
            if self._evaluation_due(step):
                self._evaluate(looks)
                meet(self.replicator)
                saved = time.monotonic()
            if time.monotonic() - saved > 60 * config.save_every_minutes:
                self.save()
                saved = time.monotonic()
            if step >= config.num_steps:
                return DONE
            reason = self._wishes.granted(self._wish(stop, start))
            if reason in SIGNAL_NAMES:
                looks.progress.say(f"{reason}: saving at step {step} and leaving.")
            if reason:
                return reason

    def _wish(self, stop: StopRequest, start: float) -> str | None:
        """Why this process would stop now, None if it would not."""
        if stop.signal_name:
            return stop.signal_name
        late = 0 < 60 * self.config.max_minutes < time.monotonic() - start
        return OUT_OF_TIME if late else None

    def _made(self, batches: Iterator[Batch], pace: "_Pace") -> dict[str, float]:
        """The metrics of one more update."""
        with pace.running():
            if self.replicator.is_async:
                # None is begun that would be made after the next evaluation.
                every = self.config.evaluate_every_steps
                stop = min(self.config.num_steps, self._known + every - self._known % every)
                told = self._step(batches, at_most=stop - self._known)
                self._known += 1
            else:
                told = self._wishes.heard(self._step(batches))
                self._known = self.step
            metrics = {name: float(value) for name, value in told.items()}
        self._check(metrics)
        return metrics

    def _check(self, metrics: Mapping[str, float]) -> None:
        """Raises DivergedError for the metrics of an update that was not made."""
        loss, norm = float(metrics["loss"]), float(metrics["gradient_norm"])
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise self._diverged(loss, norm)

    def _evaluation_due(self, step: int) -> bool:
        return step % self.config.evaluate_every_steps == 0 or step == self.config.num_steps

    def _owes_evaluation(self) -> bool:
        """Whether the process before this one was killed between saving and evaluating."""
        step = self.step
        return step > 0 and self._evaluation_due(step) and self.checkpoints.scored_step() != step

    def _evaluate(self, looks: "_Looks") -> None:
        if looks.log is None or looks.evaluate is None:
            return
        self.save()
        with self.replicator.whole():
            score = looks.evaluate(looks.log, self.step)
        best = self.checkpoints.mark_scored(self.step, score)
        looks.progress.say(f"step {self.step}: dev {score:.4f}{' (best)' if best else ''}")

    def _diverged(self, loss: float, norm: float) -> DivergedError:
        # Nothing is deleted: a state that gives no finite loss may itself be worth nothing.
        if self.replicator.is_chief and self._saved_step != self.step:
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
        if not self._known:
            return "No step was made."
        if not self.replicator.is_chief:
            return f"Training stopped at step {self._known}, which the first process saves."
        try:
            self.save()
        except (UserError, tf.errors.OpError):
            steps = self.checkpoints.steps()
            held = f"the newest checkpoint is step {steps[-1]}" if steps else "nothing is saved yet"
            return f"Training stopped at step {self._known}; {held}."
        return f"Training stopped; step {self.step} is saved in {self.checkpoints.folder}."


@dataclasses.dataclass(frozen=True)
class _Looks:
    """Where figures go."""

    evaluate: Evaluate | None
    log: MetricsLog | None
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


def _is_of_peers(error: Exception) -> bool:
    return isinstance(error, PeerGoneError)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"Cannot write {error.filename or 'a file'}: {error.strerror or error}."
    return str(error)
