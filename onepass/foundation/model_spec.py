"""The file names and the kind of a model folder; this module does not import TensorFlow."""

import json
from pathlib import Path

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
