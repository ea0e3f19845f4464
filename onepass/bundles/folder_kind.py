"""Distinguishes the kinds of model folders by the names of their files, for all commands."""

import os
from pathlib import Path
from typing import Literal

from onepass.bundles.manifest import is_version
from onepass.foundation.errors import UserError
from onepass.foundation.model_spec import SAVED_FILE

FolderKind = Literal["saved", "bundle", "trained"]
PROGRAMS = ("saved_model.pb", "lowered.pb")  # in bundles
RUN = "config.json"
PARTS = {".stablehlo": "JAX", ".tflite": "LiteRT"}  # of `export --format`, by their suffixes
NOT_SAVED = ("manifest.json", "model.json", "weights.npz", RUN)  # bundles, model folders, runs


def folder_kind(path: Path) -> FolderKind:
    """Return "saved" (by `onepass.save`), "bundle" (NAME[/VERSION]) or "trained", by file names.

    Raises:
      UserError: the folder has files of two kinds, or functions of one size for another runtime.
    """
    program = _first(path, PROGRAMS) or _of_version(path)
    if _first(path, (SAVED_FILE,)):
        _refuse(path, SAVED_FILE, program or _first(path, NOT_SAVED))
        return "saved"
    if program:
        _refuse(path, program, _first(path, (RUN,)))
        return "bundle"
    for suffix, runtime in PARTS.items():
        if _first(path, ("manifest.json",)) and any(path.glob(f"*{suffix}")):
            raise UserError(
                f"{path} holds functions for {runtime}, which runs them; it is no model."
            )
    return "trained"


def _refuse(path: Path, one: str, other: str) -> None:
    if other:
        raise UserError(
            f"{path} is ambiguous: it has both {one} and {other}, of two kinds of models."
        )


def _first(path: Path, names: tuple[str, ...]) -> str:
    """Return the first of `names` that the folder contains, even as a broken link; "" if none."""
    return next((name for name in names if os.path.lexists(path / name)), "")


def _of_version(path: Path) -> str:
    """Return VERSION/PROGRAM for a version in the folder NAME that has a program, or ""."""
    found = ((folder.name, _first(folder, PROGRAMS)) for folder in versions_of(path))
    return next((f"{version}/{program}" for version, program in found if program), "")


def versions_of(path: Path) -> list[Path]:
    """Return the folders NAME/VERSION of a folder NAME, lowest first."""
    found = (folder for folder in path.glob("*/") if is_version(folder.name))
    return sorted(found, key=lambda folder: int(folder.name))
