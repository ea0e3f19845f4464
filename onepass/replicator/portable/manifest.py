"""An exported folder: the signatures of its functions, settings for training, and run.py."""

import importlib.resources
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from onepass.foundation.files import make_folder, read_json, write_text
from onepass.foundation.rules import UserError

FORMAT = 1
MANIFEST = "manifest.json"
RUNNER = "onepass_run"  # another name than `onepass`, which the copies must not hide
# The modules that run.py imports, which need only JAX and NumPy.
COPIED = (
    *("foundation/files", "foundation/interrupt", "foundation/rules", "foundation/run_directory"),
    "replicator/portable/manifest",
    *(f"replicator/portable/layouts/{each}" for each in ("devices", "layout", "search")),
    "replicator/portable/layouts/simulation",
)


def read_manifest(folder: Path | str) -> dict[str, Any]:
    """Return the contents of FOLDER/manifest.json; raise UserError if it cannot be read."""
    path = Path(folder) / MANIFEST
    manifest = read_json(path, f"{folder} is not an exported folder: no {MANIFEST}.")
    if manifest.get("format") != FORMAT:
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


def copy_runner(folder: Path) -> None:
    """Copy run.py, and the modules that it imports as a package RUNNER, to a folder."""
    library = importlib.resources.files("onepass")
    copies = {"run": "replicator/portable/run"} | {f"{RUNNER}/{name}": name for name in COPIED}
    for name, source in copies.items():
        copy, text = folder / f"{name}.py", library.joinpath(f"{source}.py").read_text("utf-8")
        make_folder(copy.parent)
        write_text(copy, re.sub(r"^( *)from onepass\.", rf"\1from {RUNNER}.", text, flags=re.M))
        for package in Path(name).parents[:-1]:
            write_text(folder / package / "__init__.py", '"""Copies of modules of onepass."""\n')
