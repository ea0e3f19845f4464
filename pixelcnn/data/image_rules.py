"""Rules for the images that a network reads."""

import dataclasses
from typing import Literal, get_args

from replicator.runs.errors import UserError

Reduce = Literal["area", "subsample"]


@dataclasses.dataclass(frozen=True)
class ImageRules:
    """Size, channels and depth of images, and their split where the source has none.

    Attributes:
      size: height and width, in pixels; the longer of them with `crop`.
      channels: 1 (grey) or 3 (R, G, B).
      reduce: "area" (averages of the stored levels) or "subsample" (every k-th pixel).
      dev_share: share of the images in dev, in [0, 1), chosen by a hash of the name.
      bits: per level; 8 scales deeper images down, more than 8 scales only 8-bit images.
      crop: least shorter side of photographs, which keep their shape; 0: the centred square.
    """

    size: int
    channels: int
    reduce: Reduce = "area"
    dev_share: float = 0.05
    bits: int = 8
    crop: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"`size` must be at least 1, got {self.size}.")
        if self.channels not in (1, 3):
            raise UserError(f"`channels` must be 1 or 3, got {self.channels}.")
        if self.reduce not in get_args(Reduce):
            raise UserError(f'`reduce` must be "area" or "subsample", got "{self.reduce}".')
        if not 0.0 <= self.dev_share < 1.0:
            raise UserError(f"`dev_share` must be in [0, 1), got {self.dev_share}.")
        if not 8 <= self.bits <= 16:
            raise UserError(f"`bits` must be in 8 to 16, got {self.bits}.")
