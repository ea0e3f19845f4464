"""A run directory: config.json, checkpoints/, metrics.jsonl, TensorBoard events, samples/."""

import dataclasses
import fcntl
import json
import os
from pathlib import Path

from replicator.checkpoints import Checkpoints, write_text
from replicator.errors import UserError


class RunDirectory:
    """A folder that belongs to one configuration and, while training, to one process."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self._lock = None

    @classmethod
    def create(cls, path: Path, config: dict, changeable: tuple[str, ...] = ()) -> "RunDirectory":
        """The directory, new or resumed, locked for this process.

        Args:
          path: the folder; made if missing.
          config: what the run is, as JSON-able values; written to config.json.
          changeable: top-level keys that may differ when resuming.

        Raises UserError if it holds another configuration, is in use, or cannot be written.
        """
        run = cls(path)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"Cannot make the run directory {path}: {error.strerror}.") from error
        run.lock()
        run._claim(json.loads(json.dumps(config)), changeable)
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """An existing run directory, for reading."""
        run = cls(path)
        if not run.path.is_dir():
            raise UserError(f"There is no run directory {path}.")
        run.config()
        return run

    def config(self) -> dict:
        """What config.json holds, or a UserError that names it."""
        file = self.path / "config.json"
        try:
            return json.loads(file.read_text())
        except FileNotFoundError as error:
            raise UserError(f"{self.path} is not a run directory: no config.json.") from error
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {error}") from error

    def checkpoints(self, keep: int = 3) -> Checkpoints:
        """The run's checkpoints."""
        return Checkpoints(self.path / "checkpoints", keep)

    def folder(self, name: str) -> Path:
        """A folder inside the run, made if missing."""
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def lock(self) -> None:
        """Takes the run for this process; the operating system lets go when the process ends."""
        self._lock = open(self.path / "lock", "a+")  # noqa: SIM115 (held open on purpose)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise UserError(
                f"The run directory {self.path} is in use by process {holder}; wait "
                "for it or choose another --workdir."
            ) from error
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def unlock(self) -> None:
        """Lets go of the run."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _claim(self, config: dict, changeable: tuple[str, ...]) -> None:
        file = self.path / "config.json"
        if not file.exists():
            if any(self.path.glob("checkpoints/step_*.npz")):
                raise UserError(f"{self.path} holds checkpoints but no config.json.")
            write_text(file, json.dumps(config, indent=2) + "\n")
            return
        stored = self.config()
        different = [
            difference
            for key in sorted(stored.keys() | config.keys())
            if key not in changeable
            for difference in differences(stored.get(key), config.get(key), key)
        ]
        if different:
            raise UserError(
                f"{self.path} holds a run of another configuration: "
                f"{'; '.join(different[:4])}. Choose another --workdir."
            )
        write_text(file, json.dumps(config, indent=2) + "\n")


def differences(stored, given, path: str) -> list[str]:
    """A phrase for each leaf in which two nested JSON values differ."""
    if isinstance(stored, dict) and isinstance(given, dict):
        return [
            phrase
            for key in sorted(stored.keys() | given.keys())
            for phrase in differences(stored.get(key), given.get(key), f"{path}.{key}")
        ]
    return [] if stored == given else [f"{path} is {stored} there, {given} here"]


def to_json(config) -> dict:
    """A dataclass as nested JSON-able values."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))
