"""The manifest of an exported folder: signatures of its functions and settings for training."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from onepass.foundation.atomic_files import write_text
from onepass.foundation.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the contents of FOLDER/manifest.json; raise UserError if it cannot be read."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not an exported folder: no {MANIFEST}.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path} must have format {FORMAT}, the only one that this version reads.")
    return manifest


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder; a new one without functions if there is none."""
    if (folder / MANIFEST).exists():
        return read_manifest(folder)
    import tensorflow as tf  # not needed to read manifests

    return {
        "format": FORMAT,
        "functions": {},
        "versions": {"tensorflow": tf.__version__, "numpy": np.__version__},
    }


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write FOLDER/manifest.json atomically."""
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
