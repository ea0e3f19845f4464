"""Checkpoints: one npz file per step, written atomically and checked when read."""

import json
import math
import re
from pathlib import Path

from onepass.foundation.atomic_files import Arrays, read_npz, write_npz, write_text
from onepass.foundation.errors import UserError, require
from onepass.foundation.folders import make_folder

STEP_FILE = re.compile(r"step_(\d+)\.npz")
LEFTOVER = re.compile(
    r"\.(onepass-)?[0-9a-f]{16}\.(npz|json)"
)  # temporary files of a process that was killed


class Checkpoints:
    """A folder of `step_00001000.npz` files: the newest `keep` and the best one on the dev set."""

    def __init__(self, folder: Path, keep: int = 3):
        require(keep >= 1, "keep", "at least 1", keep)
        self.folder, self.keep = Path(folder), keep

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint file, in ascending order."""
        names = [STEP_FILE.fullmatch(path.name) for path in self.folder.glob("step_*.npz")]
        return sorted(int(name.group(1)) for name in names if name)

    def path(self, step: int) -> Path:
        """Return the path of a step's file, which need not exist."""
        return self.folder / f"step_{step:08d}.npz"

    def save(self, step: int, arrays: Arrays, keep_all: bool = False) -> None:
        """Write the arrays of a step, then delete files beyond the newest `keep` and the best."""
        make_folder(self.folder)
        write_npz(self.path(step), arrays)
        if not keep_all:
            self._prune()

    def mark_scored(self, step: int, score: float) -> bool:
        """Record a score, lower is better; return whether it is the best, which `save` keeps."""
        best = self._best()
        better = math.isfinite(score) and (best is None or score < best["score"])
        if better:
            best = {"step": step, "score": score}
        # Later scores are from before the run lost its last checkpoints.
        history = [pair for pair in self.scores() if pair[0] < step] + [(step, score)]
        stored = [[s, value if math.isfinite(value) else None] for s, value in history]
        self._write_scores({**(best or {}), "scored": step, "scores": stored})
        return better

    def scores(self) -> list[tuple[int, float]]:
        """Return (step, score) of every evaluation, in order; NaN if a score was not finite."""
        pairs = self._scores().get("scores", [])
        return [(step, math.nan if score is None else score) for step, score in pairs]

    def scores_without_improvement(self, step: int) -> int:
        """Return the evaluations up to `step` since the lowest score; all if no score is finite."""
        values = [value for scored, value in self.scores() if scored <= step]
        lowest = min((value for value in values if math.isfinite(value)), default=None)
        return len(values) if lowest is None else len(values) - 1 - values.index(lowest)

    def best(self) -> Arrays | None:
        """Return the arrays of the best step, or None if no step with a file has a finite score."""
        step = self.best_step()
        return None if step is None else read_npz(self.path(step))

    def best_step(self) -> int | None:
        """Return the step of the best checkpoint on the dev set, or None if there is none."""
        best = self._best()
        return None if best is None else best["step"]

    def best_score(self) -> float | None:
        """Return the score of the best checkpoint, or None if there is none."""
        best = self._best()
        return None if best is None else best["score"]

    def forget_scores(self) -> None:
        """Delete all scores, because the data has changed, but keep every checkpoint."""
        (self.folder / "best.json").unlink(missing_ok=True)

    def scored_step(self) -> int | None:
        """Return the step of the last evaluation, or None before the first."""
        return self._scores().get("scored")

    def newest(self) -> tuple[Arrays | None, list[Path]]:
        """Return the newest readable arrays, None without files, and the damaged files after."""
        damaged: list[Path] = []
        for step in reversed(self.steps()):
            try:
                return read_npz(self.path(step)), damaged
            except UserError:
                damaged.append(self.path(step))
        if damaged:
            raise UserError(
                f"Every checkpoint in {self.folder} is damaged "
                f"({', '.join(path.name for path in damaged)})."
            )
        return None, damaged

    def remove_leftovers(self) -> None:
        """Delete the temporary files of a process that was killed while writing."""
        for path in self.folder.glob(".*"):
            if LEFTOVER.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def after_divergence(self) -> str:
        """Return a message on the saved steps after a rejected update, and what to try."""
        steps = ", ".join(str(step) for step in self.steps())
        return (
            f"{self.folder} holds the state before it and earlier ones (step {steps}). Try a lower "
            "--optimizer.learning-rate in another --workdir."
        )

    def describe_save(self, step: int) -> str:
        """Return a phrase that says where a step is saved."""
        return f"step {step} is saved in {self.folder}"

    def newest_kept(self) -> str:
        """Return a phrase that names the newest checkpoint, for a message about a failed save."""
        steps = self.steps()
        return f"the newest checkpoint is step {steps[-1]}" if steps else "nothing is saved yet"

    def _prune(self) -> None:
        protected = {*self.steps()[-self.keep :], self.best_step()}
        for old in self.steps():
            if old not in protected:
                self.path(old).unlink(missing_ok=True)

    def _best(self) -> dict | None:
        scores = self._scores()
        if not {"step", "score"} <= scores.keys() or not self.path(scores["step"]).exists():
            return None
        return {"step": scores["step"], "score": scores["score"]}

    def _write_scores(self, scores: dict) -> None:
        write_text(self.folder / "best.json", json.dumps(scores) + "\n")

    def _scores(self) -> dict:
        try:
            stored = json.loads((self.folder / "best.json").read_text())
        except (OSError, RecursionError, ValueError):
            return {}
        return stored if isinstance(stored, dict) and _is_whole(stored) else {}


def _is_whole(stored: dict) -> bool:
    pairs = stored.get("scores", [])
    numbers = [value for name, value in stored.items() if name != "scores"]
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        return False
    numbers += [number for step, score in pairs for number in (step, score or 0.0)]
    return all(isinstance(number, (int, float)) for number in numbers)
