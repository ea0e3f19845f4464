"""Which models and versions lie under a folder: NAME/VERSION/manifest.json."""

import dataclasses
import errno
import itertools
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from replicator.runs.errors import UserError
from serving.bundles.plain_files import read_plain

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"[0-9]{1,18}")
MANIFEST = "manifest.json"
PIN = "pinned"  # NAME/pinned holds the only version of the model that is to be served
CANARY = "canary"  # NAME/canary holds a version and its share of the requests, such as 4 10%
SHARE = re.compile(rf"({VERSION.pattern}) +([0-9]{{1,3}}(?:\.[0-9]{{1,6}})?) *%")
MOST_FILE_BYTES = 64
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
class FoundCanary:
    """A version to be served beside the other one, and its share of the requests, 0 to 1."""

    version: FoundVersion
    share: float


@dataclasses.dataclass(frozen=True)
class ScanResult:
    """What lies under a folder.

    versions: of every name, the highest first; empty where there is none. canaries: by name, not
    among those. problems: why a name's versions cannot be read. error: why nothing can; empty where
    all is well.
    """

    versions: dict[str, list[FoundVersion]] = dataclasses.field(default_factory=dict)
    canaries: dict[str, FoundCanary] = dataclasses.field(default_factory=dict)
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    error: str = ""


def scan(root: Path) -> ScanResult:
    """What lies under the folder now; of a model with a pinned version, that version alone.

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
                _look_at(real, name, seen)
        except OSError as error:
            seen.versions[name] = []
            seen.problems[name] = f"its folder cannot be read: {_reason(error)}"
    return seen


def _look_at(root: Path, name: str, seen: ScanResult) -> None:
    """Notes a model's canary and, the highest first, its other versions that may be served."""
    versions = _versions(root, name)
    canary, pinned = _canary(root / name / CANARY), _pinned(root / name / PIN)
    number, share = canary or (None, 0.0)
    kept = [found for found in versions.values() if pinned in (None, found.number)]
    others = [found for found in kept if found.number != number]
    if number in versions and others:
        seen.canaries[name], kept = FoundCanary(versions[number], share), others
    seen.versions[name] = sorted(kept, key=lambda found: -found.number)


def _versions(root: Path, name: str) -> dict[int, FoundVersion]:
    versions: dict[int, FoundVersion] = {}
    for word in sorted(os.listdir(root / name)):
        if VERSION.fullmatch(word) and int(word) not in versions:
            found = _version(root, root / name / word, int(word))
            if found:
                versions[found.number] = found
    return versions


def _pinned(path: Path) -> int | None:
    """The version that a file names, None where there is no such file; OSError for what is none."""
    said = _said(path, VERSION, "a version, a whole number")
    return said and int(said[0])


def _canary(path: Path) -> tuple[int, float] | None:
    """The version and the share that a file names; as above."""
    said = _said(path, SHARE, "a version and its share of the requests, such as 4 10%")
    return said and (int(said[1]), min(float(said[2]) / 100, 1.0))


def _said(path: Path, rule: re.Pattern, words: str) -> re.Match | None:
    try:
        said = rule.fullmatch(read_plain(path, MOST_FILE_BYTES).decode("ascii", "replace").strip())
    except FileNotFoundError:
        return None
    except UserError as error:
        raise OSError(errno.EINVAL, f"`{path.name}` is no plain, short file") from error
    if said is None:
        raise OSError(errno.EINVAL, f"`{path.name}` must hold {words}")
    return said


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
