"""Decoding of one image file to levels: square, upright, eight bits, with notes on conversions."""

import contextlib
import dataclasses
import functools
import re
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pixelcnn.data.image_rules import ImageRules
from pixelcnn.data.reduction import centred_square, fitted
from replicator.runs.errors import UserError
from replicator.runs.folders import shown

# Pillow recognises these but shows nothing of them by itself; for EPS it runs another program.
NOT_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
LATE_FORMATS = {"MPO"}  # opened as JPEG

TRANSPARENT = "transparent, laid on white"
CMYK = "CMYK, converted to RGB"
SIXTEEN_BIT = "16-bit, scaled to 8 bits"
SEVERAL_FRAMES = "of several frames, the first one used"


class DataError(UserError):
    """A source that cannot be trained on; the message is one line and says what was found."""


class ImageError(UserError):
    """An image that cannot be used: what is wrong in a word or two (`kind`), and in detail."""

    def __init__(self, kind: str, detail: str):
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


@dataclasses.dataclass(frozen=True)
class DecodedImage:
    """A decoded image at the size and channels of the rules.

    levels: uint8 [size, size, channels]. stored_size: width and height when upright, in pixels.
    remarks: what had to be done to it, such as `TRANSPARENT`.
    """

    levels: np.ndarray
    stored_size: tuple[int, int]
    remarks: tuple[str, ...]


@functools.cache
def formats() -> tuple[str, ...]:
    """The formats that pillow reads by itself."""
    Image.init()
    return tuple(sorted(set(Image.OPEN) - NOT_DECODED))


@functools.cache
def suffixes() -> frozenset[str]:
    """The endings of image files, in lower case with the dot."""
    known = set(formats()) | LATE_FORMATS
    return frozenset(end for end, form in Image.registered_extensions().items() if form in known)


def _check_size(opened: Image.Image, size: int) -> None:
    width, height = opened.size
    if Image.MAX_IMAGE_PIXELS and width * height > Image.MAX_IMAGE_PIXELS:
        raise _too_many(width * height)
    if min(width, height) < size:
        raise ImageError("too small", f"{width}x{height}, wanted {size}x{size}")


def _too_many(pixels: int) -> ImageError:
    limit = f", the limit is {Image.MAX_IMAGE_PIXELS:,}" if Image.MAX_IMAGE_PIXELS else ""
    return ImageError("too many pixels", f"{pixels:,} pixels{limit}")


def _turn_upright(loaded: Image.Image) -> None:
    # Pillow's EXIF reader raises many kinds on damaged bytes; the levels are fine all the same.
    with contextlib.suppress(Exception):
        ImageOps.exif_transpose(loaded, in_place=True)


def _square(upright: Image.Image) -> Image.Image:
    box = centred_square(*upright.size)
    return upright if box == (0, 0, *upright.size) else upright.crop(box)


def _has_several_frames(opened: Image.Image) -> bool:
    try:
        return bool(getattr(opened, "is_animated", False))
    except Exception:  # a damaged second frame says nothing against the first
        return False


def _is_sixteen_bit(opened: Image.Image) -> bool:
    """Whether more than 8 bits a level are stored; to be asked before the levels are loaded."""
    tiles = getattr(opened, "tile", ())
    return opened.mode.startswith("I") or any(";16" in str(tile) for tile in tiles)


def _from_sixteen_bit(square: Image.Image) -> np.ndarray:
    values = np.asarray(square).astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ImageError("no known range", f"32-bit integers from {low} to {high}")
    return ((values + 128) // 257).astype(np.uint8)[..., None]


def _on_white(square: Image.Image) -> tuple[Image.Image, bool]:
    """The image as RGB on white, and whether any of the white shows."""
    clear = square.convert("RGBA")
    white = Image.new("RGBA", clear.size, "white")
    lowest_alpha = clear.getchannel("A").getextrema()[0]
    return Image.alpha_composite(white, clear).convert("RGB"), lowest_alpha != 255


def _eight_bit(square: Image.Image) -> tuple[np.ndarray, list[str]]:
    """uint8 [side, side, 1 or 3] of an image of any mode, and remarks on what was done."""
    if square.mode == "F":
        raise ImageError("no known range", "floating-point levels")
    if square.mode.startswith("I"):
        return _from_sixteen_bit(square), []
    if square.has_transparency_data:
        opaque, shows = _on_white(square)
        return np.asarray(opaque), [TRANSPARENT] if shows else []
    # What is converted is copied, and a photograph may be large.
    wanted = "L" if square.mode in ("1", "L") else "RGB"
    levels = np.asarray(square if square.mode == wanted else square.convert(wanted))
    remarks = [CMYK] if square.mode == "CMYK" else []
    return levels[..., None] if wanted == "L" else levels, remarks


def _read(opened: Image.Image, rules: ImageRules) -> DecodedImage:
    _check_size(opened, rules.size)
    remarks = [SIXTEEN_BIT] if _is_sixteen_bit(opened) else []
    opened.load()
    _turn_upright(opened)
    levels, more = _eight_bit(_square(opened))
    remarks += more
    if _has_several_frames(opened):
        remarks.append(SEVERAL_FRAMES)
    small = fitted(levels, rules.size, rules.channels, rules.reduce)
    return DecodedImage(small, opened.size, tuple(remarks))


def _reason(path: Path, error: Exception) -> str:
    if path.stat().st_size == 0:
        return "an empty file"
    if isinstance(error, UnidentifiedImageError):
        return "not an image that pillow knows"
    if isinstance(error, MemoryError):
        return "not enough memory"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return shown(reason.strip().split("\n")[0]) or type(error).__name__


def read_image(path: Path, rules: ImageRules) -> DecodedImage:
    """The image of a file: upright by its EXIF, the largest centred square, reduced.

    What is transparent lies on white, of several frames it is the first, 16-bit levels are scaled
    to 8 bits, and colour becomes grey by ITU-R BT.601. Its bits are decoded only if it has no more
    pixels than `PIL.Image.MAX_IMAGE_PIXELS`.

    Raises:
      ImageError: of kind "broken", "too small", "too many pixels" or "no known range".
    """
    if not path.is_file():
        raise ImageError("broken", "not a file")
    try:
        with Image.open(path, formats=formats()) as opened:
            return _read(opened, rules)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        pixels = re.search(r"\((\d+) pixels\)", str(error))
        raise _too_many(int(pixels[1]) if pixels else 0) from error
    except Exception as error:  # pillow's decoders raise almost anything on damaged bytes
        raise ImageError("broken", _reason(path, error)) from error
