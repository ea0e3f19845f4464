"""Read input images for `onepass sample`: images to enlarge or continue, and label maps."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from onepass.foundation.atomic_files import read_npy
from onepass.foundation.errors import UserError
from pixelcnn.data.image_file import ImageError, ImageRules, read_image


def read_prefix_image(path: Path, rows: int | None, size: int, model: Any) -> np.ndarray:
    """Return the top `rows`, or the upper half, of an image to continue, in the model's levels."""
    image = _levels(path, ImageRules(size, model.front.channels, bits=model.front.bits))
    rows = size // 2 if rows is None else rows
    if not 0 <= rows <= size:
        raise UserError(f"`--prime-rows` must be between 0 and {size}, got {rows}.")
    return image[:rows]


def at_own_size(path: Path, model: Any) -> np.ndarray:
    """Read an image at its original size, turned upright and converted to the model's levels."""
    with _readable(path), Image.open(path) as opened:
        size = max(opened.size)
    return _levels(path, ImageRules(size, model.front.channels, crop=1, bits=model.front.bits))


def labels_of(path: Path, model: Any) -> np.ndarray:
    """Read a label map, integers [side, side], from the grey levels of an image or an npy file."""
    if path.suffix == ".npy":
        labels = read_npy(path)
    else:
        with _readable(path), Image.open(path) as opened:
            if opened.has_transparency_data:
                raise UserError(f"{path} must not have transparency, a label for every pixel.")
            labels = np.asarray(opened.convert("L"), np.int32)
    if labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
        raise UserError(f"{path} must hold whole numbers of at least 0, got {labels.dtype}.")
    config = getattr(model, "config", None)
    if config is None:  # a served model: the server checks
        return labels
    size = model.front.size
    if labels.shape != (size, size):
        got = "x".join(map(str, reversed(labels.shape)))
        wanted = f"{size}x{size}"
        raise UserError(f"{path}: the map must be {wanted} pixels, got {got}.")
    classes = config.conditioning.classes
    if labels.max() >= classes:
        raise UserError(
            f"{path}: the map has the label {labels.max()}; there are 0 to {classes - 1}."
        )
    return labels


def _levels(path: Path, rules: ImageRules) -> np.ndarray:
    """Return the levels of an image; print on stderr how it was converted."""
    try:
        image = read_image(path, rules)
    except ImageError as error:
        raise UserError(f"{path}: {error}.") from error
    for remark in image.remarks:
        print(f"{path}: {remark}", file=sys.stderr)
    return image.levels


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file.") from error
    except (OSError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not an image that can be read.") from error
