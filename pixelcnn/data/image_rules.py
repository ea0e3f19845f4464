"""Settings for the images that a network reads."""

import dataclasses
from typing import Literal, get_args

from onepass.foundation.errors import at_least, require

Reduce = Literal["area", "subsample"]


@dataclasses.dataclass(frozen=True)
class ImageRules:
    """Size, channels and depth of images, and the dev share if the source has no split."""

    size: int = 32
    """Side of an image in pixels; larger images are cropped to the centred square and reduced."""
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for red, green and blue."""
    reduce: Reduce = "area"
    """Reduction of larger images: averages over areas, or every k-th pixel."""
    dev_share: float = 0.05
    """Share of the images assigned to dev, by a hash of the name, if the source has no split."""
    bits: int = 8
    """Bits per level, 8 to 16. With 8, deeper images are scaled; with more, grey images in 16-bit
    files (PNG, TIFF, npy, npz) are kept unchanged. `onepass train` detects the value unless this or
    `output.levels` is given."""
    crop: int = 0
    """Train on random square crops of photographs with this side in pixels, for factors without
    coordinates; photographs keep their shape and are reduced to a longer side of `size`. 0: train
    on whole square images."""

    def __post_init__(self) -> None:
        """Raise a ValueError that names the first invalid field."""
        at_least(self, 1, "size")
        at_least(self, 0, "crop")
        require(self.channels in (1, 3), "channels", "1 or 3", self.channels)
        kinds = get_args(Reduce)
        require(self.reduce in kinds, "reduce", " or ".join(kinds), self.reduce)
        require(0.0 <= self.dev_share < 1.0, "dev_share", "in [0, 1)", self.dev_share)
        require(8 <= self.bits <= 16, "bits", "between 8 and 16", self.bits)
