"""The models and versions in a folder, found by NAME/VERSION/manifest.json."""

import dataclasses
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from onepass.bundles.errors import shorten_text
from onepass.bundles.manifest import (
    folder_problem,
    name_problem,
    version_problem,
)

MANIFEST = "manifest.json"


MOST_FILES = 1000  # largest number of files per version that are checked for changes


@dataclasses.dataclass(frozen=True)
class FoundVersion:
    """A version on disk: its real path, and a `stamp` that changes if one of its files does."""

    number: int
    path: Path
    stamp: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ScanResult:
    """The content of a folder of models.

    Attributes:
      versions: the versions of each model by name, highest first; [] for a folder without versions.
      ignored: the reason why a folder with a manifest is not a version, by its path from the
        folder of models.
      error: the reason why the folder of models cannot be read; "" if it can be read.
    """

    versions: dict[str, list[FoundVersion]] = dataclasses.field(default_factory=dict)
    ignored: dict[str, str] = dataclasses.field(default_factory=dict)
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    error: str = ""


def scan(root: Path) -> ScanResult:
    """Return the models and versions that are currently in a folder.

    A version is a folder NAME/VERSION, named by the rule of `onepass.bundles.names`, that contains
    a manifest. Folders with other names, and links to other names or out of the folder, are
    ignored.
    """
    try:
        real = Path(root).resolve(strict=True)
        names = sorted(os.listdir(real))
    except OSError as error:
        return ScanResult(error=f"the folder of models cannot be read: {_reason(error)}")
    seen = ScanResult()
    for name in names:
        try:
            if not ((real / name).is_dir() or (real / name).is_symlink()):
                continue
            if problem := name_problem(name):
                _ignore(real, name, f"the name of a model {problem}", seen)
            else:
                seen.versions[name] = _versions(real, name, seen)
        except OSError as error:
            if name_problem(name):
                continue
            seen.versions[name] = []
            seen.problems[name] = f"its folder cannot be read: {_reason(error)}"
    return seen


def _versions(root: Path, name: str, seen: ScanResult) -> list[FoundVersion]:
    versions: list[FoundVersion] = []
    for word in sorted(os.listdir(root / name)):
        path = root / name / word
        problem = version_problem(word) and f"a version {version_problem(word)}"
        if (real := _with_manifest(path)) is None:
            continue
        if not problem and not real.is_relative_to(root):
            problem = "it is a link out of the folder of models"
        if not problem and (real.name != word or folder_problem(real)):
            problem = (
                f"it is a link to `{shorten_text(str(real.relative_to(root)))}`, not NAME/{word}"
            )
        if problem:
            seen.ignored[f"{name}/{word}"] = problem
        else:
            versions.append(FoundVersion(int(word), real, tuple(itertools.chain(*_changes(real)))))
    return sorted(versions, key=lambda found: -found.number)


def _ignore(root: Path, name: str, problem: str, seen: ScanResult) -> None:
    if any(_with_manifest(root / name / word) for word in os.listdir(root / name)):
        seen.ignored[name] = problem


def _with_manifest(path: Path) -> Path | None:
    try:
        real = path.resolve(strict=True)
        return real if stat.S_ISREG((real / MANIFEST).lstat().st_mode) else None
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return None


def _changes(folder: Path) -> Iterator[tuple[int, ...]]:
    files = ((path, name) for path, _, names in os.walk(folder) for name in sorted(names))
    for path, name in itertools.islice(files, MOST_FILES):
        found = os.lstat(os.path.join(path, name))
        yield found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
