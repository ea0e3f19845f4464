"""Run directories: config.json, checkpoints/, metrics.jsonl, TensorBoard events, samples/."""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING

import numpy as np

from onepass.foundation.files import Arrays, make_folder, read_json, read_npz, write_npz, write_text
from onepass.foundation.rules import UserError, complete_settings, differences, require

if TYPE_CHECKING:
    from onepass.foundation.metrics import MetricsLog

STEP_FILE = re.compile(r"step_(\d{8,})\.npz")
SCORES_FILE = "scores.json"


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
        protected = {*self.steps()[-self.keep :], self.best_step()}
        for old in () if keep_all else self.steps():
            if old not in protected:
                self.path(old).unlink(missing_ok=True)

    def mark_scored(self, step: int, score: float) -> bool:
        """Record a score, lower is better; return whether it is the best, which `save` keeps."""
        # Later scores are from before the run lost its last checkpoints.
        self._write_scores([pair for pair in self.scores() if pair[0] < step] + [(step, score)])
        return self.best_step() == step

    def scores(self) -> list[tuple[int, float]]:
        """Return (step, score) of every evaluation, in order; NaN if a score was not finite."""
        try:
            stored = json.loads((self.folder / SCORES_FILE).read_text())
            return [(int(n), math.nan if score is None else float(score)) for n, score in stored]
        except (OSError, RecursionError, TypeError, ValueError):
            return []

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
        return self._best()[1]

    def best_score(self) -> float | None:
        """Return the score of the best checkpoint, or None if there is none."""
        return self._best()[0]

    def scored_step(self) -> int | None:
        """Return the step of the last evaluation, or None before the first."""
        return next((step for step, _ in reversed(self.scores())), None)

    def newest(self) -> tuple[Arrays | None, list[Path]]:
        """Return the newest readable arrays, None without files, and the damaged files after."""
        damaged: list[Path] = []
        for step in reversed(self.steps()):
            try:
                return read_npz(self.path(step)), damaged
            except UserError:
                damaged.append(self.path(step))
        if damaged:
            names = ", ".join(path.name for path in damaged)
            raise UserError(f"Every checkpoint in {self.folder} is damaged ({names}).")
        return None, damaged

    def after_divergence(self) -> str:
        """Return a message on the saved steps after a rejected update, and what to try."""
        steps = ", ".join(str(step) for step in self.steps())
        return (
            f"{self.folder} holds the state before it and earlier ones (step {steps}). Try a lower "
            "--optimizer.learning-rate in another --workdir."
        )

    def describe_save(self, step: int | None) -> str:
        """Return a phrase that says where a step is saved; None: what is, after a failed save."""
        if step is not None:
            return f"step {step} is saved in {self.folder}"
        steps = self.steps()
        return f"the newest checkpoint is step {steps[-1]}" if steps else "nothing is saved yet"

    def _best(self) -> tuple[float | None, int | None]:
        """Return the lowest score and its step, the first of several; (None, None) if none is."""
        finite = [(score, step) for step, score in self.scores() if math.isfinite(score)]
        return min((pair for pair in finite if self._holds(pair[1])), default=(None, None))

    def _holds(self, step: int) -> bool:
        return self.path(step).exists()

    def _write_scores(self, scores: list[tuple[int, float]]) -> None:
        stored = [(step, score if math.isfinite(score) else None) for step, score in scores]
        write_text(self.folder / SCORES_FILE, json.dumps(stored) + "\n")


def check_arrays(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, tuple[Sequence[int], str]]
) -> None:
    """Raise UserError unless each expected array, of a shape and dtype, is there by its name."""
    for name, (shape, dtype) in expected.items():
        array = arrays.get(name)
        if array is None or (list(array.shape), array.dtype.name) != (list(shape), dtype):
            found = "none" if array is None else f"{array.dtype} {list(array.shape)}"
            raise UserError(
                f"The checkpoint does not fit: `{name}` must be {dtype} {list(shape)}, got {found}."
            )


Keys = tuple[str, ...]
NO_DEFAULTS: Mapping = MappingProxyType({})
SHOWN_DIFFERENCES = 4  # differences named in one line


class RunDirectory:
    """A folder of one configuration, its `identity`, and, during training, of one process.

    Without a path, the run is only in memory: nothing is written, and it cannot be resumed.
    """

    def __init__(self, path: Path | None, is_chief: bool = True):
        self.path, self._in_memory = Path(path or ""), path is None
        self.identity: dict = {}
        self.notes: list[str] = []
        self._lock: IO[str] | None = None
        self._is_chief = is_chief

    @classmethod
    def create(
        cls,
        path: Path,
        config: dict,
        changeable: Keys = (),
        is_chief: bool = True,
        defaults: Mapping = NO_DEFAULTS,
    ) -> "RunDirectory":
        """Return a new or resumed directory, locked for this process and claimed (see `claim`)."""
        run = cls.lock_folder(path, is_chief)
        with contextlib.ExitStack() as stack:
            stack.callback(run.unlock)
            run.claim(config, changeable, defaults)
            stack.pop_all()
        return run

    @classmethod
    def lock_folder(cls, path: Path, is_chief: bool = True) -> "RunDirectory":
        """Return the directory, locked until `unlock` or, if not the chief, untouched."""
        run = cls(path, is_chief)
        if not is_chief:
            return run
        if run.path.exists() and not run.path.is_dir():
            raise UserError(f"The run directory {path} must be a folder, but it is a file.")
        make_folder(run.path)
        run.lock()
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Return an existing run directory for reading; raise UserError if `path` is not one."""
        run = cls(path)
        if not run.path.is_dir():
            raise UserError(f"There is no run directory {path}.")
        run.config()
        return run

    def config(self) -> dict:
        """Return the contents of config.json."""
        missing = f"{self.path} is not a run directory: no config.json."
        return read_json(self.path / "config.json", missing)

    def checkpoints(self, keep: int = 3, best: bool = True) -> Checkpoints:
        """Return the run's checkpoints; in memory, the best one is kept only if `best`."""
        if self._in_memory:
            return ScoresInMemory(best)
        return Checkpoints(self.path / "checkpoints", keep)

    def metrics_log(self, first_step: int = 0) -> "MetricsLog | NoMetricsLog":
        """Return the log of the run's metrics, after dropping its records after `first_step`."""
        if self._in_memory:
            return NoMetricsLog()
        from onepass.foundation.metrics import MetricsLog  # imports TensorFlow

        return MetricsLog(self.path, first_step)

    def lock(self) -> None:
        """Lock the run until `unlock` or the end of this process."""
        try:
            file = open(self.path / "lock", "a+")  # noqa: SIM115 (held open on purpose)
        except OSError as error:
            raise UserError(
                f"Cannot write in the run directory {self.path}: {error.strerror}."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with file:
                raise UserError(_lock_error_text(self.path, file, error)) from error
        with contextlib.suppress(OSError):  # if the disk is full, the lock works without the id
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        self._lock = file

    def unlock(self) -> None:
        """Unlock the run."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.close()
            self._lock = None

    def check(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        """Raise UserError unless config.json has the same values for all keys of `config`.

        Without config.json, raise it only if there are checkpoints.
        """
        stored = self._settings(defaults)
        if stored is not None:
            given = json.loads(json.dumps(config))
            self._compare({key: stored.get(key) for key in given}, given, changeable)

    def claim(self, config: dict, changeable: Keys = (), defaults: Mapping = NO_DEFAULTS) -> None:
        """Write config.json; for a resumed run, first check that the configuration is the same.

        The values of `changeable` keys may differ; `defaults` are for settings that an earlier
        version did not store. On different data, scores are dropped: "data_folder" is the location
        of the data, and "dev_digest" identifies the evaluation data.
        """
        self.identity = {k: v for k, v in config.items() if k not in changeable}
        if self._in_memory or not self._is_chief:
            return
        stored, given = self._settings(defaults), json.loads(json.dumps(config))
        if stored is not None:
            self._compare(stored, given, changeable)
            if _on_other_data(stored, given):
                self._leave_data(stored["data_folder"], given["data_folder"])
        if stored is None or self.config() != given:
            write_text(self.path / "config.json", json.dumps(given, indent=2) + "\n")

    def _settings(self, defaults: Mapping) -> dict | None:
        if (self.path / "config.json").exists():
            return complete_settings(self.config(), dict(defaults))
        if self.checkpoints().steps():
            raise UserError(f"{self.path} holds checkpoints but no config.json.")
        return None

    def _leave_data(self, before: str, now: str) -> None:
        kept = self.checkpoints()
        change = f"{before}, and is now on {now}" if before != now else f"{now}, which has changed"
        note = f"{self.path} was trained on {change}"
        if kept.best_step() is not None:
            note += (
                f"; the score of its best checkpoint, {kept.best_score():.4g} at step "
                f"{kept.best_step()}, was measured on the earlier data and is dropped"
            )
        (kept.folder / SCORES_FILE).unlink(missing_ok=True)  # every checkpoint is kept
        self.notes.append(note)

    def _compare(self, stored: dict, given: dict, changeable: Keys) -> None:
        different = [
            difference
            for key in sorted(stored.keys() | given.keys())
            if key not in changeable
            for difference in differences(stored.get(key), given.get(key), key)
        ]
        if different:
            left_out = len(different) - SHOWN_DIFFERENCES
            shown = different[:SHOWN_DIFFERENCES] + [f"and {left_out} more"] * (left_out > 0)
            raise UserError(
                f"{self.path} holds a run of another configuration: {'; '.join(shown)}. Choose "
                "another --workdir."
            )


def _on_other_data(stored: dict, given: dict) -> bool:
    for key in ("dev_digest", "data_folder"):
        if key in stored and key in given:
            return stored[key] != given[key]
    return False


def _lock_error_text(path: Path, lock: IO[str], error: OSError) -> str:
    if error.errno not in (errno.EAGAIN, errno.EACCES):
        return f"The run directory {path} cannot be locked: {error.strerror}."
    lock.seek(0)
    holder = lock.read().strip() or "unknown"
    return (
        f"The run directory {path} is in use by process {holder}; wait for it or choose another "
        "--workdir."
    )


class ScoresInMemory(Checkpoints):
    """Checkpoints that store only scores, and the arrays of the best one if `best`."""

    def __init__(self, best: bool) -> None:
        super().__init__(Path())
        self._stored: list[tuple[int, float]] = []
        self._keeps_best = best
        self._latest: Arrays | None = None
        self._arrays: Arrays | None = None  # arrays of the best score

    def newest(self) -> tuple[Arrays | None, list[Path]]:
        """See `Checkpoints.newest`."""
        return None, []

    def save(self, step: int, arrays: Arrays, keep_all: bool = False) -> None:
        """Hold the arrays until `mark_scored`."""
        self._latest = arrays if self._keeps_best else None

    def mark_scored(self, step: int, score: float) -> bool:
        """See `Checkpoints.mark_scored`."""
        better = super().mark_scored(step, score)
        if better:
            self._arrays = self._latest
        self._latest = None
        return better

    def best(self) -> Arrays | None:
        """See `Checkpoints.best`."""
        return self._arrays

    def after_divergence(self) -> str:
        """See `Checkpoints.after_divergence`."""
        return "the model has the weights before it. Try a lower learning rate."

    def describe_save(self, step: int | None) -> str:
        """See `Checkpoints.describe_save`."""
        kept = "its last weights" if step is None else f"the weights of step {step}"
        return f"the model has {kept}"

    def scores(self) -> list[tuple[int, float]]:
        """See `Checkpoints.scores`."""
        return self._stored

    def _holds(self, step: int) -> bool:
        return True

    def _write_scores(self, scores: list[tuple[int, float]]) -> None:
        self._stored = scores


class NoMetricsLog:
    """A substitute for `MetricsLog` that drops everything."""

    def scalars(self, step: int, figures: dict[str, float]) -> None:
        """Drop the metrics."""

    def close(self) -> None:
        """Do nothing: there is no file."""
