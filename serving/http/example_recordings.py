"""The recordings that the package includes as inputs of speech models."""

import csv
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import soundfile

from wavenet.shipped import recordings_folder


@dataclasses.dataclass(frozen=True)
class Example:
    """A recording, with its transcript and length."""

    name: str
    text: str
    seconds: float
    path: Path


@functools.cache
def examples() -> Mapping[str, Example]:
    """Return the recordings that no shipped model was trained on, by name."""
    folder = recordings_folder()
    found = {}
    with (folder / "dev.tsv").open(encoding="utf-8", newline="") as registry:
        for row in csv.DictReader(registry, delimiter="\t"):
            path = folder / "dev" / row["file"]
            seconds = soundfile.info(str(path)).duration
            found[path.stem] = Example(path.stem, row["text"], round(seconds, 2), path)
    return found
