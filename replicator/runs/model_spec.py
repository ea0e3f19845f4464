"""What the files of a model folder say of it, read without TensorFlow."""

import json
from pathlib import Path

SPEC_FILE, WEIGHTS_FILE = "model.json", "weights.npz"


def kind_of(path: Path) -> str | None:
    """The kind of model that a run directory or model folder says it holds; None for no such."""
    for name in (SPEC_FILE, "config.json"):
        try:
            stored = json.loads((Path(path) / name).read_text())
        except (OSError, ValueError):
            continue
        kind = stored.get("kind") if isinstance(stored, dict) else None
        return kind if isinstance(kind, str) else None
    return None
