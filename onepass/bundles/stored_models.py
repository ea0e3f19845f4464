"""Loads folders that `onepass.save` wrote, with programs that are scanned like those of bundles."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.bundles.manifest import files_of
from onepass.foundation.allowed_operations import PROGRAM, scanned_program
from onepass.foundation.errors import UserError
from onepass.foundation.saved_folder import SPEC_FILE, read_spec

if TYPE_CHECKING:
    from distill.flow_student import FlowStudent
    from onepass.model import Autoregressive

VARIABLES_FOLDER = "variables"
TRUST = "If you trust its author, load it with `trust=True` (on the command line: `--trust`)."


def load_saved(folder: Path, trust: bool = False) -> "Autoregressive | FlowStudent":
    """Load a model that `onepass.save` wrote; `trust` runs its program without a scan."""
    from distill import model_store

    if trust:
        return model_store.load_stored(folder)
    with scanned_copy(folder, TRUST) as copy:
        return model_store.load_stored(copy)


@contextlib.contextmanager
def scanned_copy(folder: Path, hint: str = "") -> Iterator[Path]:
    """Yield a copy of a saved model with exactly the program that was scanned.

    Besides the program, TensorFlow reads only the variables, which are numbers; the copy links to
    them. The copy is deleted after the block.
    """
    with tempfile.TemporaryDirectory() as root:
        copy = Path(root) / "model"
        try:
            _copy(folder, copy, hint)
            yield copy
        except MemoryError:
            raise
        except UserError as error:
            raise UserError(str(error).replace(str(copy), str(folder))) from error
        except Exception as error:  # its type depends on the corrupted byte
            text = str(error) or type(error).__name__
            line = " ".join(text.replace(str(copy), str(folder)).split())[:200]
            raise UserError(f"{folder} contains no model that `save` wrote: {line}.") from error


def _copy(folder: Path, copy: Path, hint: str) -> None:
    spec = read_spec(folder)
    program, own = folder / spec["program"], copy / spec["program"]
    own.mkdir(parents=True)
    (copy / SPEC_FILE).write_text(json.dumps(spec), encoding="utf-8")
    try:
        content = scanned_program(program)
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            raise UserError(f"{folder} contains no model that `save` wrote: {error}") from error
        raise UserError(f"{error} {hint}".rstrip()) from error
    (own / PROGRAM).write_bytes(content)
    variables = program / VARIABLES_FOLDER
    files_of(variables)  # rejects pipes and links
    (own / VARIABLES_FOLDER).symlink_to(variables.resolve())
