"""The options of `onepass quickstart`."""

import dataclasses
import math
from pathlib import Path

from onepass.foundation.stored_config import at_least, require


@dataclasses.dataclass(frozen=True)
class QuickstartArguments:
    """Run a demonstration: networks of Keras and PyTorch, speech, measures, images and training.

    It derives the steps of two networks that it has never seen; speaks a held-out sentence sample
    by sample and in one pass, and measures the results; draws images pixel by pixel and scale by
    scale; trains a small WaveNet; and writes a report.
    """

    out: Path = Path("onepass-quickstart")
    """Folder for the sounds, the images, the run and report.md; created if missing."""
    overwrite: bool = False
    """Replace existing files of the same names."""
    seconds: float = 3.0
    """Length of the teacher's sound, in seconds; the student speaks the whole recording."""
    spoken: int = 4
    """Number of recordings that are resynthesised and measured."""
    train: bool = True
    """Train a small WaveNet too, for at most three minutes."""
    seed: int = 0
    """Seed of the noise."""

    def __post_init__(self) -> None:
        """Raise a UserError that names the field if a number is out of range."""
        at_least(self, 1, "spoken")
        require(0 < self.seconds < math.inf, "seconds", "positive and finite", self.seconds)
