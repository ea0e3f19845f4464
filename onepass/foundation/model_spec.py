"""The file names and kinds of model folders; this module does not import TensorFlow."""

import json
from pathlib import Path
from typing import Any

from onepass.foundation.errors import UserError
from onepass.foundation.folders import read_plain

SPEC_FILE, WEIGHTS_FILE = "model.json", "weights.npz"
SAVED_FILE = "autoregressive.json"  # written by `onepass.save`


def kind_of(path: Path) -> str | None:
    """Return the kind of model in a run, model folder or saved folder, or None if it is unknown."""
    for name in (SPEC_FILE, "config.json", SAVED_FILE):
        file = Path(path) / name
        try:
            if not file.is_file():  # a pipe would block the reader
                continue
            stored = json.loads(file.read_text())
        except (OSError, RecursionError, ValueError):
            continue
        kind = stored.get("kind") if isinstance(stored, dict) else None
        return kind if isinstance(kind, str) else None
    return None


# A model that replaces another one is written to the name that the other one does not have.
PROGRAM_FOLDERS = ("program", "program.new")
MOST_SPEC_BYTES = 2**24


def read_spec(folder: Path) -> dict[str, Any]:
    """Return the values in a stored model's `autoregressive.json`."""
    try:
        spec = json.loads(read_plain(folder / SAVED_FILE, MOST_SPEC_BYTES))
        name = spec.setdefault("program", PROGRAM_FOLDERS[0])
    except (AttributeError, OSError, RecursionError, ValueError) as error:
        raise UserError(f"{folder} contains no model that `save` wrote: {error}.") from error
    if name not in PROGRAM_FOLDERS:
        raise UserError(f"{folder} contains no model that `save` wrote: its program is {name!r}.")
    return spec


def program_name(folder: Path) -> str:
    """Return the name of the program in a folder; "" if there is no model."""
    try:
        return read_spec(folder)["program"]
    except UserError:
        return ""
