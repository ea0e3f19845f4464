"""The file names and kinds of model folders; this module does not import TensorFlow."""

import hashlib
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


def read_object(
    path: Path, most_bytes: int = MOST_SPEC_BYTES, missing: str = "", digest: str = ""
) -> dict[str, Any]:
    """Return the JSON object in a plain file, {} for another value; raise UserError if it fails.

    Args:
      missing: the error's message if there is no such file; "": as for one that cannot be read.
      digest: SHA-256 of the signed file, in hexadecimal; "": any file.
    """
    try:
        content = read_plain(path, most_bytes)
        if digest and hashlib.sha256(content).hexdigest() != digest:
            raise UserError(f"{path} is not the one that was signed.")
        stored = json.loads(content)
    except UserError:
        raise
    except (OSError, RecursionError, ValueError) as error:
        is_missing = missing and isinstance(error, FileNotFoundError)
        raise UserError(missing if is_missing else f"{path} cannot be read: {error}.") from error
    return stored if isinstance(stored, dict) else {}


def read_spec(folder: Path) -> dict[str, Any]:
    """Return the values in a stored model's `autoregressive.json`."""
    try:
        spec = read_object(folder / SAVED_FILE)
    except UserError as error:
        raise UserError(f"{folder} contains no model that `save` wrote: {error}") from error
    name = spec.setdefault("program", PROGRAM_FOLDERS[0])
    if name not in PROGRAM_FOLDERS:
        raise UserError(f"{folder} contains no model that `save` wrote: its program is {name!r}.")
    return spec


def program_name(folder: Path) -> str:
    """Return the name of the program in a folder; "" if there is no model."""
    try:
        return read_spec(folder)["program"]
    except UserError:
        return ""
