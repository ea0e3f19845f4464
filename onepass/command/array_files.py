"""Read and write the elements of models in npy, audio and image files."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from onepass.foundation.files import endings, list_files, read_npy
from onepass.foundation.rules import UserError
from pixelcnn.data.image_file import has_transparent_colour, in_srgb
from pixelcnn.sampling.grids import write_png
from wavenet.data import audio

SOUNDS, IMAGES = (".wav", ".flac"), (".png", ".tif", ".tiff")
CONTAINERS = ("WAV", "WAVEX", "RF64", "AIFF", "FLAC")  # whose length `audio` knows to the sample


class ElementFiles(NamedTuple):
    """Functions that read and write files of one kind of elements without changing the values."""

    read: Callable[[Path, Any], np.ndarray]
    together: Callable[[list[np.ndarray]], Any]  # of all files, for `compress`
    write: Callable[[Path, np.ndarray, Any], object]
    suffixes: tuple[str, ...]  # of written files; a name with a different one gets the last
    most: tuple[int | None, int | None] = (None, None)  # files and conditions; None: no limit


def rows_of(path: Path, model: Any) -> Iterator[np.ndarray]:
    """Yield the rows of a data set, [time] or [height, width, channels].

    A folder is searched to any depth and read in the order of names: sounds, at the rate of a model
    that has a `sample_rate_hz`, or else images. Notes on ignored folders are printed on stderr.
    """
    if not path.is_dir():
        yield from read_npy(path)
        return
    rate_hz = getattr(model, "sample_rate_hz", None)
    suffixes = IMAGES if rate_hz is None else SOUNDS
    names, notes = list_files(path)
    files = sorted(path / name for name in names if Path(name).suffix.lower() in suffixes)
    if not files:
        found = "; ".join([endings(names), *notes])
        raise UserError(f"{path} contains no {', '.join(suffixes)} file (found {found}).")
    for note in notes:
        print(f"{path}: {note}", file=sys.stderr)
    for file in files:
        yield _read_image(file)[0] if rate_hz is None else _waveform(file, rate_hz)


def _waveform(path: Path, rate_hz: int) -> np.ndarray:
    sound = audio.read_sound(path)
    for note in sound.notes():
        print(f"{path}: {note}", file=sys.stderr)
    return audio.resample(sound.waveform, sound.sample_rate_hz, rate_hz)


def _read_image(path: Path) -> tuple[np.ndarray, str, int, bool]:
    """Read an image file as it is: levels, Pillow mode, frames, and whether it is not in sRGB."""
    try:
        with Image.open(path) as opened:
            levels, mode, frames = np.asarray(opened), opened.mode, getattr(opened, "n_frames", 1)
            others, keyed = bool(in_srgb(opened)[1]), has_transparent_colour(opened)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file.") from error
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as an image.") from error
    if keyed:
        raise UserError(f"{path} must not have transparency, got a transparent colour.")
    return levels[..., np.newaxis] if levels.ndim == 2 else levels, mode, frames, others


def _image(path: Path, model: Any) -> np.ndarray:
    pixels, mode, frames, others = _read_image(path)
    wanted, (height, width) = "L" if model.front.channels == 1 else "RGB", pixels.shape[:2]
    if mode != wanted or (height, width) != (model.front.size, model.front.size):
        raise UserError(
            f"{path} must be {model.front.size}x{model.front.size} pixels of mode {wanted}, got "
            f"{width}x{height} of mode {mode}."
        )
    if frames > 1:
        raise UserError(f"{path} must be one image, it holds {frames}.")
    if others:
        print(f"{path}: its pixels are kept, its colour profile is not", file=sys.stderr)
    return pixels


def _recording(path: Path, model: Any) -> np.ndarray:
    samples, found = audio.read_samples(path)
    said = found.subtype, found.sample_rate_hz, found.channels
    if said != ("PCM_16", model.front.sample_rate_hz, 1):
        raise UserError(
            f"{path} must be mono PCM_16 at {model.front.sample_rate_hz} Hz, got {found.channels} "
            f"channels of {found.subtype} at {found.sample_rate_hz} Hz."
        )
    if found.container not in CONTAINERS:
        raise UserError(
            f"{path} must be a WAV, FLAC or AIFF file, got one of the format {found.container}."
        )
    if found.missing_samples:
        raise UserError(
            f"{path} must be whole: its header promises {len(samples) + found.missing_samples:,} "
            f"samples, it has {len(samples):,}."
        )
    if found.endless or not found.has_own_length:
        none = "gives none, so that it may still be being written"
        raise UserError(
            f"{path} must be one sound with its own length in its header: it "
            f"{none if found.endless else 'holds more'}."
        )
    return samples


# Keyed by `onepass.compression.container.Kind.name`.
FILES = {
    "images": ElementFiles(_image, np.stack, lambda path, x, _: write_png(path, x), (".png",)),
    "sound": ElementFiles(
        _recording,
        list,
        lambda path, x, model: audio.write(path, x, model.front.sample_rate_hz),
        (".wav", ".flac"),
        (None, 1),
    ),
    "arrays": ElementFiles(
        lambda path, _: read_npy(path),
        lambda only: only[0],
        lambda path, x, _: np.save(path, x),
        (".npy",),
        (1, 0),
    ),
}
