"""Listeners of updates and scores, and the outcome of training."""

import dataclasses
import signal
from collections.abc import Mapping
from pathlib import Path

from onepass.foundation.progress import duration


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


DONE, FINISHED_BEFORE, OUT_OF_TIME = "done", "finished before", "time"
NOTHING_TO_TRAIN, NO_IMPROVEMENT, CALLBACK = "nothing to train", "no improvement", "callback"


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
