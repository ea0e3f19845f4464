"""Which models and versions lie under a folder: NAME/VERSION/manifest.json."""

import dataclasses
import itertools
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"[0-9]{1,18}")
MANIFEST = "manifest.json"
MOST_FILES = 1000  # of a version, that are looked at for changes


@dataclasses.dataclass(frozen=True)
class FoundVersion:
    """A version on disk.

    path: with no link in it. stamp: changes with any of its files.
    """

    number: int
    path: Path
    stamp: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ScanResult:
    """What lies under a folder.

    versions: of every name, the highest first; empty where there is none. problems: why a name's
    versions cannot be read. error: why nothing can; empty where all is well.
    """

    versions: dict[str, list[FoundVersion]] = dataclasses.field(default_factory=dict)
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    error: str = ""


def scan(root: Path) -> ScanResult:
    """Return what lies under the folder now.

    Only names of letters, digits and `._-`, only versions that are whole numbers and have a
    manifest, and nothing that a link leads to outside of the folder.
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
    """Return the versions of a name that may be served, the highest first."""
    versions: dict[int, FoundVersion] = {}
    for word in sorted(os.listdir(root / name)):
        if VERSION.fullmatch(word) and int(word) not in versions:
            found = _version(root, root / name / word, int(word))
            if found:
                versions[found.number] = found
    return sorted(versions.values(), key=lambda found: -found.number)


def _version(root: Path, path: Path, number: int) -> FoundVersion | None:
    """The version, None if it is not (or not yet) one."""
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
    """Of every file of a version when it was written, its size and its inode."""
    files = ((place, name) for place, _, names in os.walk(folder) for name in sorted(names))
    for place, name in itertools.islice(files, MOST_FILES):
        found = os.lstat(os.path.join(place, name))
        yield found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
