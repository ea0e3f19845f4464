"""The names of the files of a stored model."""

import json
from pathlib import Path
from typing import Any

from onepass.foundation.errors import UserError
from onepass.foundation.model_spec import SAVED_FILE as SPEC_FILE
from onepass.foundation.plain_files import read_plain

# A model that replaces another one is written to the name that the other one does not have.
PROGRAM_FOLDERS = ("program", "program.new")
MOST_SPEC_BYTES = 2**24


def read_spec(folder: Path) -> dict[str, Any]:
    """Return the values in a stored model's `autoregressive.json`."""
    try:
        spec = json.loads(read_plain(folder / SPEC_FILE, MOST_SPEC_BYTES))
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
