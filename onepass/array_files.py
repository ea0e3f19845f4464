"""Rows of data for a user's model, from an npy file or a folder of sounds or images."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from replicator.runs.atomic_files import read_npy
from replicator.runs.errors import UserError

SOUNDS, IMAGES = (".wav", ".flac"), (".png", ".tif", ".tiff")


def rows_of(path: Path, model: Any) -> Iterator[np.ndarray]:
    """Yield the rows of data, [time] or [height, width, channels].

    Args:
      path: npy file, or a folder of sounds or images, which are read in the order of their names.
      model: its `sample_rate_hz`, if any, is that of the sounds; without one the files are images.

    Raises:
      UserError: there is no row, or a file cannot be read.
    """
    if not path.is_dir():
        yield from read_npy(path)
        return
    rate_hz = getattr(model, "sample_rate_hz", None)
    suffixes = IMAGES if rate_hz is None else SOUNDS
    named = (file for file in path.iterdir() if file.suffix.lower() in suffixes)
    files = sorted(filter(Path.is_file, named))
    if not files:
        raise UserError(f"{path} contains no {', '.join(suffixes)} file.")
    for file in files:
        yield _image(file) if rate_hz is None else _sound(file, rate_hz)


def _sound(path: Path, rate_hz: int) -> np.ndarray:
    from wavenet.data import audio

    return audio.read(path, rate_hz)


def _image(path: Path) -> np.ndarray:
    """Return the stored levels of an image, [height, width, channels]."""
    try:
        with Image.open(path) as opened:
            levels = np.asarray(opened)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as an image.") from error
    return levels[..., np.newaxis] if levels.ndim == 2 else levels
