"""Listeners, which are notified of every update and score, and may end training."""

from collections.abc import Mapping


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
        """Handle the score at `step` (None without an evaluation), and the metrics of its update.

        The metrics are empty if an earlier process made the update.
        """
        return False

    def end(self) -> None:
        """Handle the end of training without an error."""
