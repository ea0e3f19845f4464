"""The options of `onepass sample` for models of images."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from pixelcnn.config import SamplerName


@dataclasses.dataclass(frozen=True)
class SampleArguments:
    """Draw images: PNG files, a sheet of them all and, from a multiscale model, how they grow."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, or shipped-digits, shipped-digits-teacher,
    shipped-digits-flow, shipped-digits-64, shipped-digits-64-teacher, shipped-upsample,
    shipped-emoji."""
    out: Path
    """Folder for the files; created if missing."""
    overwrite: bool = False
    """Replace existing files of the same names, and remove the rest of a larger grid of the
    seed."""
    num: int | None = None
    """Images, from the rows 0, 1, ... of the seed; videos for a video model. None: 16, or 1 of a
    photograph that is enlarged."""
    seed: int = 0
    """Seed of the noise: the same seed gives the same images."""
    size: int | None = None
    """Side in pixels, the longer one of a photograph; None: as trained. A multiscale model draws
    every size from its base up."""
    temperature: tuple[float, ...] = (1.0,)
    """1 samples the model, less comes closer to its mode; one number, or one per scale, base
    first."""
    guidance: float = 0.0
    """Guidance weight: moves every pixel away from the unconditional distribution. Beyond 0 classes
    show more clearly, at twice the work, and it is no longer the model's own density."""
    sampler: SamplerName = "cached"
    """cached: the work of one pixel per pixel. fixed-point: the same images in passes over whole
    rows, fewer and more expensive, for an accelerator. naive: a whole pass per pixel."""
    batch: int = 1
    """Images per fixed-point pass; a finished one makes way for the next."""
    label: str | None = None
    """Class, by name or number; None: all classes in turn."""
    caption: tuple[str, ...] | None = None
    """Texts to draw, in turn, up to 200 characters each, for a model of captions."""
    map: Path | None = None
    """Image whose grey levels are the labels of a map, for a model of maps."""
    start: Path | None = None
    """Small square image to enlarge, of a side that the model draws on its way (multiscale). A
    model trained by upsample-512 enlarges photographs of any shape, of such a longer side."""
    prime: Path | None = None
    """Image to continue (PixelCNN)."""
    prime_rows: int | None = None
    """Rows of that image to keep; None: the upper half."""
    video: Path | None = None
    """Folder of episodes (*_train.npz, *_dev.npz) whose dev clips a video model continues."""

    @property
    def count(self) -> int:
        """Number of images."""
        return 16 if self.num is None else self.num
