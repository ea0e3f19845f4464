"""The files of a folder, and names that are fit to print."""

import os
from pathlib import Path


def list_files(folder: Path) -> tuple[list[str], list[str]]:
    """The names of all files below, hidden ones apart, and notes on folders that cannot be read."""
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
    """The path as printable text on one line, whatever bytes its name is made of."""
    text = str(path).encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in text)
