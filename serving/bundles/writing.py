"""Writing of a bundle, of any kind of model, complete or not at all."""

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from replicator.runs.errors import UserError
from replicator.runs.model_spec import SPEC_FILE
from serving.bundles.allowed_operations import LOWERED, PROGRAM, check_program
from serving.bundles.signature import Signature


def check_new(out: Path) -> None:
    """Raise UserError unless a folder is new or empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} already exists; write a new version to another folder.")


def check_version(out: Path, name: str = "--out") -> None:
    """Raise UserError unless a folder, given as `name`, is named by a version."""
    if not out.absolute().name.isdecimal():
        raise UserError(
            f"`{name}` must end in a version, a whole number, such as {out}/1; got {out}."
        )


@contextlib.contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yield a folder next to `out` that becomes `out` when the block ends.

    It is removed if the block raises.
    """
    folder, made = out.with_name(f".{secrets.token_hex(8)}"), not out.parent.exists()
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"Cannot create the folder {out}: {error.strerror}.") from error
    try:
        yield folder
        os.replace(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made and not out.exists():
            with contextlib.suppress(OSError):  # whatever else came to lie there
                out.parent.rmdir()


def write_spec(folder: Path, spec: Mapping[str, Any]) -> None:
    """Write model.json."""
    (folder / SPEC_FILE).write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")


def write_program(
    folder: Path,
    spec: Mapping[str, Any],
    module: tf.Module,
    functions: Mapping[str, Any],
    lowered: Mapping[str, Any],
    serving: dict[str, Any],
) -> list[str]:
    """Write the program and model.json, and return the names of the signatures.

    Args:
      folder: of the bundle.
      spec: of model.json, but for `serving`.
      module: has the variables.
      functions: by signature.
      lowered: the same with programs as StableHLO, if there are any.
      serving: of model.json.

    Raises:
      UserError: the program has an operation that bundles may not have.
    """
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(folder), functions, options)
    write_spec(folder, {**spec, "serving": serving})
    declared = {name: Signature.from_dict(s) for name, s in serving["signatures"].items()}
    check_program(folder, declared)
    if lowered:
        with tempfile.TemporaryDirectory(dir=folder) as place:  # of the same variables once more
            tf.saved_model.save(module, place, lowered, options)
            os.replace(Path(place) / PROGRAM, folder / LOWERED)
        check_program(folder, declared)
    return list(declared)
