"""The files of a folder, and file names made printable."""

import os
from pathlib import Path


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
