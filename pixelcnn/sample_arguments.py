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
    shipped-digits-flow, shipped-objects, shipped-objects-teacher, shipped-emoji."""
    out: Path
    """Folder for the files; made if missing."""
    overwrite: bool = False
    """Replace files of the same names that are there already, and remove the rest of a larger
    grid of the seed."""
    num: int = 16
    """Images, from the rows 0, 1, ... of the seed; videos for a video model."""
    seed: int = 0
    """Names the noise: the same seed gives the same images."""
    size: int | None = None
    """Side in pixels; None: as trained. A multiscale model draws every size from its base up."""
    temperature: tuple[float, ...] = (1.0,)
    """1 samples the model, less comes closer to its mode; one number, or one a scale, base
    first."""
    guidance: float = 0.0
    """How far every pixel is moved away from what no class in particular would have; beyond 0
    classes show more clearly, at twice the work, and it is no longer the model's own density."""
    sampler: SamplerName = "cached"
    """cached: the work of one pixel for each pixel. fixed-point: the same images in passes
    over whole rows, fewer and dearer, for an accelerator. naive: a whole pass for every pixel."""
    batch: int = 1
    """Images that a pass by fixed point computes; one that is done makes way for the next."""
    label: str | None = None
    """Class, by name or number; None: all classes in turn."""
    caption: tuple[str, ...] | None = None
    """Texts to draw, in turn, up to 200 characters each, for a model of captions."""
    map: Path | None = None
    """Image whose grey levels are the labels of a map, for a model of maps."""
    start: Path | None = None
    """Small square image to enlarge, of a side that the model draws on its way (multiscale)."""
    prime: Path | None = None
    """Image to go on from (PixelCNN)."""
    prime_rows: int | None = None
    """Rows of that image to keep; None: the upper half."""
    video: Path | None = None
    """Folder of episodes (*_train.npz, *_dev.npz) whose dev clips a video model goes on from."""
