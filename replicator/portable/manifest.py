"""The manifest of an exported folder: what its functions take and return, and how it trains."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.atomic_files import write_text
from replicator.runs.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The content of FOLDER/manifest.json; UserError that names it where it cannot be read."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not an exported folder: no {MANIFEST}.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path} is not of format {FORMAT}, which this version reads.")
    return manifest


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a folder; a new one, without functions, where it has none."""
    if (folder / MANIFEST).exists():
        return read_manifest(folder)
    import tensorflow as tf  # reading a manifest need not wait for it

    return {
        "format": FORMAT,
        "functions": {},
        "versions": {"tensorflow": tf.__version__, "numpy": np.__version__},
    }


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes FOLDER/manifest.json."""
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
