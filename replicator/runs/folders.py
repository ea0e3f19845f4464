"""Folders and the names of files in them: made, listed, hashed and made printable."""

import collections
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from replicator.runs.errors import UserError

NAMES_SHOWN = 5
TEXTS = ("", ".md", ".tsv")  # endings of what lies beside the data and is none


def make_folder(folder: Path) -> Path:
    """The folder, made if it is missing; UserError where it cannot be."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {folder}: {error.strerror}.") from error
    return Path(folder)


def list_files(folder: Path) -> tuple[list[str], list[str]]:
    """The paths of all files in a folder and its subfolders, and notes on unreadable ones.

    Paths are relative, with `/`, sorted within each subfolder. Hidden files and folders are left
    out; links are followed, each real folder once.
    """
    names, notes, seen = [], [], set()

    def unreadable(error: OSError) -> None:
        notes.append(f"{shown(error.filename)} cannot be read ({error.strerror}) and is ignored")

    for here, folders, files in os.walk(folder, followlinks=True, onerror=unreadable):
        real = os.path.realpath(here)
        folders[:] = [] if real in seen else sorted(f for f in folders if not f.startswith("."))
        if real not in seen:
            names += [Path(here, f).relative_to(folder).as_posix() for f in sorted(files)]
        seen.add(real)
    return [name for name in names if not Path(name).name.startswith(".")], notes


def shown(path: object) -> str:
    """The path as one line of printable text; other characters become `?`."""
    text = str(path).encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in text)


def first_of(names: Sequence[str]) -> str:
    """The first few names, and dots where there are more: `a, b, c, d, e, ...`."""
    return ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")


def some(names: Sequence[str]) -> str:
    """How many there are, and the first of them: `7: a, b, c, d, e, ...`."""
    return f"{len(names)}: {first_of(names)}"


def counted(count: int, thing: str) -> str:
    """Return `1 image`, `2 images`."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def endings(names: Iterable[str]) -> str:
    """The most frequent endings of file names, counted: `7 .txt, 1 no ending`."""
    counts = collections.Counter(Path(name).suffix or "no ending" for name in names)
    found = ", ".join(f"{count} {ending}" for ending, count in counts.most_common(NAMES_SHOWN))
    return shown(found) or "no file at all"


def unread(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return a note that counts the files of unknown endings, or none where there is none.

    Args:
      names: of all files.
      known: endings that are read, in lower case.
    """
    others = [n for n in names if Path(n).suffix.lower() not in (*known, *TEXTS)]
    return [f"not read, of no kind that is known: {endings(others)}"] if others else []


def check_new(paths: Iterable[Path], overwrite: bool) -> None:
    """Raise UserError if one of the files is there already and must not be written over."""
    there = [] if overwrite else [path for path in paths if path.exists()]
    if there:
        raise UserError(f"{there[0]} is there already; --overwrite replaces it.")


def hashed(name: str) -> float:
    """A number in [0, 1) that is spread evenly over names, the same on every machine."""
    data = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(data, "big") / 2.0**64
