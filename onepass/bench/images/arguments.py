"""The options of `onepass bench images`."""

import dataclasses
from pathlib import Path

from onepass.bench.options import BenchOptions

SAMPLERS = ("naive", "cached", "multiscale-A", "multiscale-B", "tfp")


@dataclasses.dataclass(frozen=True)
class BenchArguments(BenchOptions):
    """Samplers of images side by side, in one run.

    Pixels a second and seconds an image, one at a time, of the small presets' networks with random
    weights: the PixelCNN naively (a whole network pass for every pixel) and cached, the multiscale
    model of types A and B, and tfp.distributions.PixelCNN of like size. Where a whole image would
    take too long, some of its passes are timed and the row says so. Compilation has its own
    rows. Then the training steps of the PixelCNN and of tfp's on the same images, and for every
    target whether it was met.
    """

    plot: Path | None = None
    """File for a plot of seconds against the side of the image (.png, .pdf or .svg)."""
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    """Sides of the images in pixels, each 8 times a power of two."""
    samplers: tuple[str, ...] = SAMPLERS
    """Which samplers, any of: naive, cached, multiscale-A, multiscale-B, tfp."""
    training: bool = True
    """Time the training steps too."""
