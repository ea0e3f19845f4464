"""The verb `sample` for a photograph to enlarge: a PNG file of every scale as it is finished."""

import dataclasses
import itertools
import time
from pathlib import Path

import numpy as np
from PIL import Image

from pixelcnn.data.image_file import ImageError, ImageRules, read_image
from pixelcnn.model import ImageModel
from pixelcnn.request_checks import check_request
from pixelcnn.sample_arguments import SampleArguments
from pixelcnn.sampling.enlargement import Work
from pixelcnn.sampling.generation import Request
from pixelcnn.sampling.grids import image_name, write_png
from replicator.runs.errors import UserError
from replicator.runs.folders import check_new, counted, make_folder
from replicator.runs.progress import Progress

INTERRUPTED = 130
UNUSED = ("sampler", "guidance", "batch", "prime", "prime_rows")


def enlarge(given: SampleArguments, model: ImageModel) -> int:
    """Write the scales of an enlarged photograph and return the exit status.

    Ctrl-C keeps the scales that are finished.
    """
    for field in dataclasses.fields(given):
        if field.name in UNUSED and getattr(given, field.name) != field.default:
            flag = field.name.replace("_", "-")
            raise UserError(f"`--{flag}` is not for a photograph to enlarge.")
    photograph = read_photograph(Path(str(given.start)), model.channels)
    num, size = given.num or 1, given.size or model.size
    heat = given.temperature[0] if len(given.temperature) == 1 else given.temperature
    check_request(model.density, size, heat, None, photograph)
    request = Request(tuple(range(num)), given.seed, size, {}, heat, None, photograph)
    enlarger = model.sampler.enlarger
    first = max(photograph.shape[:2])
    sides = [side for side in enlarger.model.sizes if first < side <= size]
    files = [(row, side) for row in range(num) for side in sides]
    paths = [given.out / _name(given.seed, row, side, size) for row, side in files]
    check_new(paths, given.overwrite)
    make_folder(given.out)
    work, written, start = enlarger.work(photograph.shape, size), 0, time.perf_counter()
    with Progress(num * work.tiles, "enlarging", "tile") as progress:
        scales = (model.sampler.enlarged(request, row, progress.advance) for row in range(num))
        larger = (scale for each in scales for scale in itertools.islice(each, 1, None))
        try:
            for path, image in zip(paths, larger, strict=True):
                write_png(path, image)
                written += 1
        except KeyboardInterrupt:
            progress.say(f"interrupted: keeping {written} of {len(paths)} scales")
    if written < len(paths):
        return INTERRUPTED
    shape = image.shape[1], image.shape[0]
    print(_summary(given.out, num, shape, time.perf_counter() - start, work))
    return 0


def read_photograph(path: Path, channels: int) -> np.ndarray:
    """Read an image upright at its own size and shape, uint8 [height, width, channels].

    Raises:
      UserError: no image that can be read.
    """
    try:
        with Image.open(path) as opened:
            size = max(opened.size)
        return read_image(path, ImageRules(size, 1 if channels == 1 else 3, crop=1)).levels
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file.") from error
    except (OSError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is no image that can be read.") from error
    except ImageError as error:
        raise UserError(f"{path}: {error}.") from error


def _name(seed: int, row: int, side: int, size: int) -> str:
    """Return the name of a scale's file; the largest has that of an image."""
    return image_name(seed, row, None if side == size else str(side))


def _summary(folder: Path, num: int, shape: tuple[int, int], seconds: float, work: Work) -> str:
    """Return two lines on what was written and the work that it took."""
    width, height = shape
    steps = f", each with {work.steps} steps within patches" if work.steps else ""
    return (
        f"{folder}: {counted(num, 'image')} of {width}x{height} pixels in {seconds:.1f} s, "
        f"compilation included\n"
        f"passes: {work.passes} per image{steps}, in {counted(work.tiles, 'tile')}"
    )
