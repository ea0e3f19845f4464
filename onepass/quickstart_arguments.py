"""The options of `onepass quickstart`."""

import dataclasses
import math
from pathlib import Path

from replicator.runs.field_rules import at_least, require


@dataclasses.dataclass(frozen=True)
class QuickstartArguments:
    """Speak a sentence that no model heard, slowly and in one pass; measure; draw images, pixel
    by pixel and scale by scale; train a small WaveNet; report."""

    out: Path = Path("onepass-quickstart")
    """Folder for the sounds, the images, the run and report.md; made if missing."""
    overwrite: bool = False
    """Replace files of the same names that are there already."""
    seconds: float = 3.0
    """Length of the teacher's sound; the student speaks all of the recording."""
    spoken: int = 4
    """Recordings that are spoken again to be measured."""
    train: bool = True
    """Train a small WaveNet as well, three minutes at the most."""
    seed: int = 0
    """Names the noise."""

    def __post_init__(self):
        """Raises ValueError, naming the field, for a number out of range."""
        at_least(self, 1, "spoken")
        require(0 < self.seconds < math.inf, "seconds", "positive and finite", self.seconds)
