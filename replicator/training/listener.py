"""Listeners, which hear of every update and score, and may end training."""

from collections.abc import Mapping


class Listener:
    """Receive the events of `Trainer.train` in the chief; this base class ignores them.

    A method that returns a bool returns True to end training after this update.
    """

    def begin(self, step: int) -> None:
        """Hear that training begins, or is resumed, after `step` updates."""

    def updating(self, step: int) -> None:
        """Hear that the update to `step` is about to be made."""

    def updated(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Hear the metrics of the update to `step`, as the log has them."""
        return False

    def scored(self, step: int, metrics: Mapping[str, float], score: float | None) -> bool:
        """Hear the score at `step`, None without an evaluation, and the metrics of its update.

        They are empty if an earlier process made the update.
        """
        return False

    def end(self) -> None:
        """Hear that training has ended without an error."""
