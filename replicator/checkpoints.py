"""Checkpoints: one npz file each, written whole or not at all, checked when read."""

import contextlib
import json
import os
import zipfile
from pathlib import Path

import numpy as np

from replicator.atomic import replacing
from replicator.errors import UserError

Arrays = dict[str, np.ndarray]


class Checkpoints:
    """A folder of `step_00001000.npz` files: the newest `keep` and the best one on dev."""

    def __init__(self, folder: Path, keep: int = 3):
        if keep < 1:
            raise UserError(f"`keep` must be at least 1, got {keep}.")
        self.folder, self.keep = Path(folder), keep
        self.folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """The steps that have a file, ascending."""
        return sorted(
            int(path.stem.removeprefix("step_")) for path in self.folder.glob("step_*.npz")
        )

    def path(self, step: int) -> Path:
        """The file of a step, there or not."""
        return self.folder / f"step_{step:08d}.npz"

    def save(self, step: int, arrays: Arrays) -> Path:
        """The new file, complete on disk; older ones beyond `keep` are deleted afterwards."""
        path = self.path(step)
        write_npz(path, arrays)
        protected = {*self.steps()[-self.keep :], self.best_step()}
        for old in self.steps():
            if old not in protected:
                self.path(old).unlink(missing_ok=True)
        return path

    def mark_best(self, step: int, score: float) -> bool:
        """Whether `score` (lower is better) is the best yet; then its file is never deleted."""
        best = self._best()
        if best is not None and best["score"] <= score:
            return False
        write_text(self.folder / "best.json", json.dumps({"step": step, "score": score}))
        return True

    def best_step(self) -> int | None:
        """The step of the best checkpoint on dev, or None before the first evaluation."""
        best = self._best()
        return None if best is None or not self.path(best["step"]).exists() else best["step"]

    def newest(self) -> tuple[Arrays | None, list[Path]]:
        """The newest arrays that read whole (None: there are none), and the damaged files met.

        Raises UserError when there are files and every one is damaged.
        """
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

    def _best(self) -> dict | None:
        try:
            return json.loads((self.folder / "best.json").read_text())
        except (OSError, ValueError):
            return None


def read_npz(path: Path) -> Arrays:
    """The arrays of a file, or a UserError that names it when it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise UserError(f"There is no checkpoint {path}.") from error
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, KeyError) as error:
        raise UserError(f"The checkpoint {path} is damaged: {error}") from error


def write_npz(path: Path, arrays: Arrays) -> None:
    """Writes arrays so that `path` is always either the old file or the whole new one."""
    with _whole(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with _whole(path) as temporary:
        temporary.write_text(text)


@contextlib.contextmanager
def _whole(path: Path):
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise UserError(
            f"Cannot write {path}: {error.strerror or error}. What was saved before is kept."
        ) from error
