"""Training runs in memory, with the interface of a run directory but without files."""

from collections.abc import Mapping
from pathlib import Path

from onepass.foundation.atomic_files import Arrays
from onepass.foundation.checkpoints import Checkpoints
from onepass.foundation.run_directory import NO_DEFAULTS, Keys


class InMemoryRun:
    """A substitute for `RunDirectory` that writes nothing and cannot be resumed."""

    def __init__(self) -> None:
        self.identity: dict = {}
        self.notes: list[str] = []

    def claim(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        """Store the configuration as `identity`, without the changeable keys."""
        self.identity = {k: v for k, v in config.items() if k not in changeable}

    def checkpoints(self, keep: int = 3, best: bool = False) -> "ScoresInMemory":
        """Return a substitute for the checkpoints: scores and, if `best`, the best arrays."""
        return ScoresInMemory(best)

    def metrics_log(self, first_step: int = 0) -> "NoMetricsLog":
        """Return a log that drops all metrics."""
        return NoMetricsLog()


class ScoresInMemory(Checkpoints):
    """Checkpoints that store only scores, since the state is in the model's variables."""

    def __init__(self, best: bool = False) -> None:
        super().__init__(Path())
        self._stored: dict = {}
        self._keeps_best = best
        self._latest: Arrays | None = None
        self._arrays: Arrays | None = None  # arrays of the best score

    def newest(self) -> tuple[Arrays | None, list[Path]]:
        """Return (None, []): there are no checkpoints and no damaged files."""
        return None, []

    def remove_leftovers(self) -> None:
        """Do nothing: there is no folder."""

    def save(self, step: int, arrays: Arrays, keep_all: bool = False) -> None:
        """Hold the arrays until `mark_scored` if the best ones are to be stored."""
        self._latest = arrays if self._keeps_best else None

    def mark_scored(self, step: int, score: float) -> bool:
        """Record the score of the arrays saved last, and return whether it is the best so far."""
        better = super().mark_scored(step, score)
        if better:
            self._arrays = self._latest
        self._latest = None
        return better

    def best(self) -> Arrays | None:
        """Return the arrays of the best score, or None if they are not stored."""
        return self._arrays

    def after_divergence(self) -> str:
        """Return a message on the weights left after a rejected update, and what to try."""
        return "the model has the weights before it. Try a lower learning rate."

    def describe_save(self, step: int) -> str:
        """Return a phrase that says where a step is saved: in the model."""
        return f"the model has the weights of step {step}"

    def newest_kept(self) -> str:
        """Return a phrase that says which weights the model has after a failed save."""
        return "the model has its last weights"

    def _best(self) -> dict | None:
        return self._stored if "step" in self._stored else None

    def _write_scores(self, scores: dict) -> None:
        self._stored = scores

    def _scores(self) -> dict:
        return self._stored


class NoMetricsLog:
    """A substitute for `MetricsLog` that drops everything."""

    def scalars(self, step: int, figures: dict[str, float]) -> None:
        """Drop the metrics."""

    def close(self) -> None:
        """Do nothing: there is no file."""
