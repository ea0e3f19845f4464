"""The models and versions in a folder, found by NAME/VERSION/manifest.json."""

import dataclasses
import itertools
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"[0-9]{1,18}")
VERSION_RULE = "must be a number of at most 18 digits"
MANIFEST = "manifest.json"
MOST_FILES = 1000  # largest number of files per version that are checked for changes


@dataclasses.dataclass(frozen=True)
class FoundVersion:
    """A version on disk.

    Attributes:
      number: the version.
      path: the version's folder, with symbolic links resolved.
      stamp: times, sizes and inodes of up to MOST_FILES files, which change if a file changes.
    """

    number: int
    path: Path
    stamp: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ScanResult:
    """The content of a folder of models.

    Attributes:
      versions: the versions of each model by name, highest first; [] for a folder without versions.
      problems: the reason why a model's versions cannot be read, by the model's name.
      error: the reason why the folder of models cannot be read; "" if it can be read.
    """

    versions: dict[str, list[FoundVersion]] = dataclasses.field(default_factory=dict)
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    error: str = ""


def scan(root: Path) -> ScanResult:
    """Return the models and versions that are currently in a folder.

    A model's name consists of letters, digits and `._-`. A version is a folder whose name is a
    whole number and that contains a manifest. Links to versions outside the folder are ignored.
    """
    try:
        real = Path(root).resolve(strict=True)
        names = sorted(name for name in os.listdir(real) if NAME.fullmatch(name))
    except OSError as error:
        return ScanResult(error=f"the folder of models cannot be read: {_reason(error)}")
    seen = ScanResult()
    for name in names:
        try:
            if (real / name).is_dir() or (real / name).is_symlink():
                seen.versions[name] = _versions(real, name)
        except OSError as error:
            seen.versions[name] = []
            seen.problems[name] = f"its folder cannot be read: {_reason(error)}"
    return seen


def _versions(root: Path, name: str) -> list[FoundVersion]:
    versions: dict[int, FoundVersion] = {}
    for word in sorted(os.listdir(root / name)):
        if VERSION.fullmatch(word) and int(word) not in versions:
            found = _version(root, root / name / word, int(word))
            if found:
                versions[found.number] = found
    return sorted(versions.values(), key=lambda found: -found.number)


def _version(root: Path, path: Path, number: int) -> FoundVersion | None:
    """Return the version in a folder; None if it has no manifest, or is a link outside `root`."""
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root):
            return None
        if not stat.S_ISREG((real / MANIFEST).lstat().st_mode):
            return None
        return FoundVersion(number, real, tuple(itertools.chain(*_changes(real))))
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return None


def _changes(folder: Path) -> Iterator[tuple[int, ...]]:
    files = ((path, name) for path, _, names in os.walk(folder) for name in sorted(names))
    for path, name in itertools.islice(files, MOST_FILES):
        found = os.lstat(os.path.join(path, name))
        yield found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
