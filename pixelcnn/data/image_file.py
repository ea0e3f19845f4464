"""Decoding of image files to levels: upright, square and reduced, with remarks on conversions."""

import contextlib
import dataclasses
import functools
import re
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from onepass.foundation.errors import UserError
from onepass.foundation.folders import show_path
from pixelcnn.data.colour import has_transparent_colour, in_srgb
from pixelcnn.data.depth import DEPTHS, EIGHT, depth_of, rescale_levels
from pixelcnn.data.image_rules import ImageRules
from pixelcnn.data.reduction import centred_square, fit_longer_side, fit_square

# Pillow recognises these formats but cannot decode them without other programs.
NOT_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
LATE_FORMATS = {"MPO"}  # pillow opens these as JPEG

TRANSPARENT = "transparent, laid on white"
CMYK = "CMYK, converted to RGB"
SIXTEEN_BIT = "16-bit, scaled to 8 bits"
ARRAY = ".npy"  # suffix of an image as an array [height, width], or with 1 or 3 channels
SEVERAL_FRAMES = "of several frames, the first one used"


class DataError(UserError):
    """An error in a source of images, with a one-line message."""


class ImageError(UserError):
    """An error for an image that cannot be used, with a short reason (`kind`) and a detail."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


@dataclasses.dataclass(frozen=True)
class DecodedImage:
    """A decoded image with the size and channels of the rules.

    Attributes:
      levels: uint8 [size, size, channels], or uint16 for more than 8 bits; with `ImageRules.crop`
        the whole image, [height, width, channels].
    """

    levels: np.ndarray
    stored_size: tuple[int, int]
    remarks: tuple[str, ...]
    highest: int = 255

    @property
    def deep(self) -> bool:
        """Return whether levels have more than 8 bits."""
        return self.levels.dtype != np.uint8


@functools.cache
def formats() -> tuple[str, ...]:
    """Return the formats that pillow decodes without other programs."""
    Image.init()
    return tuple(sorted(set(Image.OPEN) - NOT_DECODED))


@functools.cache
def suffixes() -> frozenset[str]:
    """Return the suffixes of image files, in lower case with the dot."""
    known = set(formats()) | LATE_FORMATS
    endings = Image.registered_extensions().items()
    return frozenset({ARRAY, *(end for end, form in endings if form in known)})


def _check_size(width: int, height: int, rules: ImageRules) -> None:
    if Image.MAX_IMAGE_PIXELS and width * height > Image.MAX_IMAGE_PIXELS:
        raise _too_many(width * height)
    size, shorter, longer = rules.size, *sorted((width, height))
    if not rules.crop and shorter < size:
        raise ImageError("too small", f"{width}x{height}, wanted {size}x{size}")
    if rules.crop and (longer < size or shorter * size < rules.crop * longer):
        wanted = f"wanted a longer side of {size}, the shorter {rules.crop} or more of it"
        raise ImageError("too small", f"{width}x{height}, {wanted}")


def _too_many(pixels: int) -> ImageError:
    limit = f", the limit is {Image.MAX_IMAGE_PIXELS:,}" if Image.MAX_IMAGE_PIXELS else ""
    return ImageError("too many pixels", f"{pixels:,} pixels{limit}")


def _turn_upright(loaded: Image.Image) -> None:
    # Pillow's EXIF reader raises many kinds of errors on damaged data; the pixels are still valid.
    with contextlib.suppress(Exception):
        ImageOps.exif_transpose(loaded, in_place=True)


def _square(upright: Image.Image) -> Image.Image:
    box = centred_square(*upright.size)
    return upright if box == (0, 0, *upright.size) else upright.crop(box)


def _has_several_frames(opened: Image.Image) -> bool:
    try:
        return bool(getattr(opened, "is_animated", False))
    except Exception:  # a damaged second frame does not matter
        return False


def _is_sixteen_bit(opened: Image.Image) -> bool:
    """Return whether more than 8 bits per level are stored; must be called before loading."""
    tiles = getattr(opened, "tile", ())
    return opened.mode.startswith("I") or any(";16" in str(tile) for tile in tiles)


def _sixteen_bit(values: np.ndarray) -> np.ndarray:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ImageError("no known range", f"32-bit integers from {low} to {high}")
    return values.astype(np.uint16)


def _on_white(square: Image.Image) -> tuple[Image.Image, bool]:
    clear = square.convert("RGBA")
    white = Image.new("RGBA", clear.size, "white")
    lowest_alpha = clear.getchannel("A").getextrema()[0]
    return Image.alpha_composite(white, clear).convert("RGB"), lowest_alpha != 255


def _levels(square: Image.Image) -> tuple[np.ndarray, list[str]]:
    if square.mode == "F":
        raise ImageError("no known range", "floating-point levels")
    if square.mode.startswith("I"):
        if has_transparent_colour(square):
            raise ImageError("transparent", "a transparent level of more than 8 bits")
        return _sixteen_bit(np.asarray(square)[..., None]), []
    if square.has_transparency_data:
        opaque, shows = _on_white(square)
        return np.asarray(opaque), [TRANSPARENT] if shows else []
    # Avoid a conversion, which would copy a possibly large image.
    wanted = "L" if square.mode in ("1", "L") else "RGB"
    levels = np.asarray(square if square.mode == wanted else square.convert(wanted))
    remarks = [CMYK] if square.mode == "CMYK" else []
    return levels[..., None] if wanted == "L" else levels, remarks


def _read(opened: Image.Image, rules: ImageRules) -> DecodedImage:
    _check_size(*opened.size, rules)
    sixteen_bit = _is_sixteen_bit(opened)
    opened.load()
    _turn_upright(opened)
    coloured, remark = in_srgb(opened if rules.crop else _square(opened))
    levels, remarks = _levels(coloured)
    remarks += [remark] if remark else []
    if sixteen_bit and levels.dtype == np.uint8:  # pillow scales 16-bit colour to 8 bits
        remarks.insert(0, SIXTEEN_BIT)
    if _has_several_frames(opened):
        remarks.append(SEVERAL_FRAMES)
    return _reduce_image(levels, opened.size, rules, remarks)


def _read_array(path: Path, rules: ImageRules) -> DecodedImage:
    stored = np.load(path, allow_pickle=False, mmap_mode="r")
    if not isinstance(stored, np.ndarray):
        stored.close()
        raise ImageError("broken", "an npz archive with the name of one array")
    levels = stored[..., None] if stored.ndim == 2 else stored
    if levels.ndim != 3 or levels.shape[-1] not in (1, 3):
        wanted = "wanted [height, width], with 1 or 3 channels if any"
        raise ImageError("broken", f"an array {list(stored.shape)}, {wanted}")
    if levels.dtype.kind not in "iu":
        raise ImageError("no known range", f"{levels.dtype} levels")
    height, width = levels.shape[:2]
    _check_size(width, height, rules)
    whole = np.asarray(levels)
    levels = whole if whole.dtype == np.uint8 else _sixteen_bit(whole)
    return _reduce_image(levels, (width, height), rules, [])


def _reduce_image(
    levels: np.ndarray, size: tuple[int, int], rules: ImageRules, remarks: list[str]
) -> DecodedImage:
    if rules.crop:
        small = fit_longer_side(levels, rules.size, rules.channels)
    else:
        small = fit_square(levels, rules.size, rules.channels, rules.reduce)
    return DecodedImage(small, size, tuple(remarks), int(levels.max()))


def at_depth(image: DecodedImage, stored_bits: int, bits: int) -> DecodedImage:
    """Convert an image's levels to `bits` bits, with a remark if they are scaled.

    `stored_bits` is the depth of an image that is stored in 16 bits.

    Raises:
      ImageError: If a level does not fit into `bits`, kind "too bright".
    """
    if not image.deep:
        if bits == EIGHT:
            return image
        levels, remark = rescale_levels(image.levels, EIGHT, bits), f"8-bit, scaled to {bits} bits"
    elif bits > EIGHT:
        if image.highest >= 2**bits:
            most = f"{bits} bits hold 0 to {2**bits - 1:,}"
            raise ImageError("too bright", f"a level of {image.highest:,}, {most}")
        return image
    else:
        levels, remark = rescale_levels(image.levels, stored_bits, bits), SIXTEEN_BIT
        if stored_bits < DEPTHS[-1]:
            remark = f"{stored_bits}-bit in 16-bit files, scaled to {bits} bits"
    return dataclasses.replace(image, levels=levels, remarks=(remark, *image.remarks))


def _reason(path: Path, error: Exception) -> str:
    if path.stat().st_size == 0:
        return "an empty file"
    if isinstance(error, UnidentifiedImageError):
        return "not an image that pillow knows"
    if isinstance(error, MemoryError):
        return "not enough memory"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return show_path(reason.strip().split("\n")[0]) or type(error).__name__


def read_image(path: Path, rules: ImageRules) -> DecodedImage:
    """Read an image by `read_stored` at `rules.bits` bits; 16-bit ones by their highest level."""
    image = read_stored(path, rules)
    return at_depth(image, depth_of(image.highest), rules.bits)


def read_stored(path: Path, rules: ImageRules) -> DecodedImage:
    """Read an image, rotate it according to EXIF, crop it to the centred square, and reduce it.

    Colours are converted to sRGB (`colour.in_srgb`). Transparent pixels are drawn on white, only
    the first frame is used, and colour is converted to grey by ITU-R BT.601 if the rules require
    grey. 16-bit grey is kept. Images with more than `PIL.Image.MAX_IMAGE_PIXELS` are not decoded.

    Raises:
      ImageError: If the image cannot be used, kind "broken", "too small", "too many pixels" or "no
        known range".
    """
    if not path.is_file():
        raise ImageError("broken", "not a file")
    try:
        if path.suffix.lower() == ARRAY:
            return _read_array(path, rules)
        with Image.open(path, formats=formats()) as opened:
            return _read(opened, rules)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        pixels = re.search(r"\((\d+) pixels\)", str(error))
        raise _too_many(int(pixels[1]) if pixels else 0) from error
    except Exception as error:  # pillow's decoders raise many kinds of errors on damaged data
        raise ImageError("broken", _reason(path, error)) from error
