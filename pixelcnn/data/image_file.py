"""Decoding of images to levels: upright, square and reduced, in sRGB, with remarks.

A file can declare a different colour space: by an ICC profile (AdobeRGB, Display P3, CMYK), by the
gamma and the primaries in a PNG, or by the EXIF data of a camera that is set to AdobeRGB.
"""

import contextlib
import dataclasses
import functools
import io
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageCms, ImageOps, UnidentifiedImageError

from onepass.foundation.files import show_path
from onepass.foundation.rules import UserError
from pixelcnn.config import ImageRules, dtype_of

EIGHT = 8
DEPTHS = (8, 10, 12, 14, 16)  # depths of cameras and scanners; files store 8 or 16 bits


def depth_of(highest: int) -> int:
    """Return the smallest depth in bits, out of `DEPTHS`, that can represent level `highest`."""
    return next(bits for bits in DEPTHS if highest < 2**bits)


def rescale_levels(levels: np.ndarray, from_bits: int, bits: int) -> np.ndarray:
    """Scale levels to a depth of `bits`, such that the highest levels correspond; round half up."""
    if from_bits == bits:
        return levels.astype(dtype_of(bits))
    most, highest = 2**from_bits - 1, 2**bits - 1
    return ((2 * levels.astype(np.int64) * highest + most) // (2 * most)).astype(dtype_of(bits))


def min_log_scale_of(bits: int) -> float:
    """Return the lower bound of log-scales that corresponds, in levels, to -7 at 8 bits."""
    return -7.0 - (bits - EIGHT) * math.log(2.0)


# Remarks on images that were changed.
CONVERTED = "of another colour profile, converted to sRGB"
KEPT = "of another colour profile, its levels kept as stored"
TRANSPARENT = "transparent, laid on white"
CMYK = "CMYK, converted to RGB"
SIXTEEN_BIT = "16-bit, scaled to 8 bits"
SEVERAL_FRAMES = "of several frames, the first one used"

SAME_LEVELS = 3  # maximum difference in levels of a profile that counts as sRGB
SRGB_GAMMA, SAME_GAMMA = 1 / 2.2, 0.02
WHITE = (0.3127, 0.3290)  # chromaticity of D65
SRGB = (0.64, 0.33, 0.30, 0.60, 0.15, 0.06)  # chromaticities x, y of red, green and blue
ADOBE, ADOBE_GAMMA = (0.64, 0.33, 0.21, 0.71, 0.15, 0.06), 256 / 563
SAME_PLACE = 0.005  # tolerance of chromaticities
INTEROPERABILITY, ADOBE_MARK = 0xA005, "R03"
GREY = ("1", "L", "LA", "La")
MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}  # {colour space of a profile: pillow mode}


def has_transparent_colour(image: Image.Image) -> bool:
    """Return whether an image has transparency that is not a channel, as `tRNS` in a PNG."""
    return image.has_transparency_data and not {"A", "a"} & set(image.getbands())


def in_srgb(image: Image.Image) -> tuple[Image.Image, str | None]:
    """Convert an image to sRGB if possible; return it with a remark, or None if it was sRGB."""
    profile = image.info.get("icc_profile")
    gamma, primaries = (0.0, SRGB) if profile else _declared_colour(image)
    if not profile and not gamma:
        return image, None
    if image.mode.startswith(("I", "F")):
        return image, KEPT
    try:
        if profile:
            converted = _by_profile(image, bytes(profile))
        else:
            converted = _by_numbers(image, gamma, primaries)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError, ArithmeticError):  # damaged
        return image, KEPT
    if converted is None:
        return image, None
    if image.mode in GREY:
        converted = converted.getchannel(1)
    if image.has_transparency_data:
        converted.putalpha(image.convert("RGBA").getchannel("A"))
    return converted, CONVERTED


def _by_profile(image: Image.Image, profile: bytes) -> Any:
    """Return an image in sRGB, or None if that is its profile; ValueError if it does not fit."""
    opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    mode = MODES.get(opened.profile.xcolor_space)
    is_grey = mode == "L" and image.mode not in GREY
    if mode is None or is_grey or (mode == "CMYK") != (image.mode == "CMYK"):
        raise ValueError(opened.profile.xcolor_space)
    srgb, flags = ImageCms.createProfile("sRGB"), ImageCms.Flags.NOCACHE
    transform = ImageCms.buildTransform(opened, srgb, mode, "RGB", flags=flags)
    cube = np.moveaxis(np.indices((9, 9, 9)) * 31.875, 0, -1).reshape(1, -1, 3)
    grid = Image.fromarray(cube.astype(np.uint8)).convert(mode)
    made: Any = ImageCms.applyTransform(grid, transform)
    changed = ImageChops.difference(made, grid.convert("RGB"))
    if np.asarray(changed).max() <= SAME_LEVELS:
        return None
    return ImageCms.applyTransform(image.convert(mode), transform)


def _declared_colour(image: Image.Image) -> tuple[float, tuple[float, ...]]:
    """Return a file's gamma, from light to levels, and primaries; 0 to treat it as sRGB."""
    stored = image.info
    if "srgb" in stored:
        return 0.0, SRGB
    if "gamma" not in stored and "chromaticity" not in stored:
        return (ADOBE_GAMMA if _says_adobe(image) else 0.0), ADOBE
    gamma = float(stored.get("gamma") or SRGB_GAMMA)
    gamma = gamma if 0.05 < gamma < 20 else SRGB_GAMMA
    places = tuple(stored.get("chromaticity") or (*WHITE, *SRGB))
    if len(places) != 8 or np.allclose(places[2:], SRGB, 0.0, SAME_PLACE):
        return (0.0 if abs(gamma - SRGB_GAMMA) < SAME_GAMMA else gamma), SRGB
    return (gamma if np.allclose(places[:2], WHITE, 0.0, SAME_PLACE) else 0.0), places[2:]


def _says_adobe(image: Image.Image) -> bool:
    try:
        mark = image.getexif().get_ifd(INTEROPERABILITY).get(1)
    except Exception:  # pillow's EXIF reader raises many kinds of errors on damaged bytes
        return False
    return str(mark).rstrip("\\0") == ADOBE_MARK


def _by_numbers(image: Image.Image, gamma: float, primaries: tuple[float, ...]) -> Image.Image:
    decode = ((np.arange(256) / 255.0) ** (1.0 / gamma)).astype(np.float32)
    matrix = (np.linalg.inv(_to_xyz(SRGB)) @ _to_xyz(primaries)).T.astype(np.float32)
    levels = np.array(image.convert("RGB"))
    for row in levels:  # row by row to save memory
        light = np.clip(decode[row] @ matrix, 0.0, 1.0)
        curve = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
        row[:] = np.rint(255.0 * curve)
    return Image.fromarray(levels)


def _to_xyz(primaries: tuple[float, ...]) -> np.ndarray:
    columns = [[x / y, 1.0, (1.0 - x - y) / y] for x, y in np.reshape(primaries, [3, 2]).tolist()]
    base = np.array(columns).T
    white = np.array([WHITE[0] / WHITE[1], 1.0, (1.0 - sum(WHITE)) / WHITE[1]])
    return base * np.linalg.solve(base, white)


def centred_square(levels: np.ndarray) -> np.ndarray:
    """Return the largest centred square of levels [height, width, ...]."""
    height, width = levels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return levels[top : top + side, left : left + side]


def _summed_rows(levels: np.ndarray, size: int) -> np.ndarray:
    side, rest = len(levels), levels.shape[1:]
    if side % size == 0:
        return size * levels.reshape(size, side // size, *rest).sum(axis=1, dtype=np.int64)
    rows = []
    for low in range(0, size * side, side):
        first, stop = low // size, -(-(low + side) // size)
        weights = np.diff(np.clip(np.arange(first, stop + 1) * size, low, low + side))
        rows.append(weights @ levels[first:stop].reshape(stop - first, -1).astype(np.int64))
    return np.stack(rows).reshape(size, *rest)


def area_averaged(levels: np.ndarray, size: int, width: int | None = None) -> np.ndarray:
    """Return the mean level over each cell's area, [size, width, channels], rounded half up."""
    shape = (size, size if width is None else width)
    if levels.shape[:2] == shape:
        return levels
    area = levels.shape[0] * levels.shape[1]
    rows = _summed_rows(levels, shape[0]).swapaxes(0, 1)
    summed = _summed_rows(rows, shape[1]).swapaxes(0, 1)
    return ((2 * summed + area) // (2 * area)).astype(levels.dtype)


def subsample_pixels(levels: np.ndarray, size: int) -> np.ndarray:
    """Return every k-th pixel of the centred square with side k * size, [size, size, ...].

    k is floor(side / size); of each block the upper left pixel, like group 1 of a multiscale model.
    """
    step = len(levels) // size
    first = (len(levels) - step * size) // 2
    chosen = slice(first, first + step * (size - 1) + 1, step)
    return levels[chosen, chosen]


def with_channels(levels: np.ndarray, channels: int) -> np.ndarray:
    """Convert an image [..., 1 or 3] from grey to RGB, or to luma by ITU-R BT.601 in 16 bits."""
    if levels.shape[-1] == channels:
        return np.ascontiguousarray(levels)
    if channels == 3:
        return np.repeat(levels, 3, axis=-1)
    weighted = levels.astype(np.int64) @ np.array([19595, 38470, 7471], np.int64)
    return ((weighted + 32768) >> 16).astype(levels.dtype)[..., None]


def fit_levels(levels: np.ndarray, rules: ImageRules) -> np.ndarray:
    """Return the centred square, reduced to [size, size, channels], of uint8 or uint16 levels.

    With `rules.crop`, return the whole image with a longer side of `size` instead.
    """
    if rules.crop:
        sides, longer = levels.shape[:2], max(levels.shape[:2])
        height, width = (max(1, (2 * side * rules.size + longer) // (2 * longer)) for side in sides)
        return with_channels(area_averaged(levels, height, width), rules.channels)
    reduce = subsample_pixels if rules.reduce == "subsample" else area_averaged
    return with_channels(reduce(centred_square(levels), rules.size), rules.channels)


# Pillow recognises these formats but cannot decode them without other programs.
NOT_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
LATE_FORMATS = {"MPO"}  # pillow opens these as JPEG
ARRAY = ".npy"  # suffix of an image as an array [height, width], or with 1 or 3 channels


class ImageError(UserError):
    """An error for an image that cannot be used, with a short reason (`kind`) and a detail."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


@dataclasses.dataclass(frozen=True)
class DecodedImage:
    """A decoded image with the size and channels of the rules, as of `fit_levels`.

    `stored_size` is width and height; `highest` is the highest level before the image was reduced.
    """

    levels: np.ndarray
    stored_size: tuple[int, int]
    remarks: tuple[str, ...]
    highest: int

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


def read_image(path: Path, rules: ImageRules) -> DecodedImage:
    """Read an image by `read_stored` at `rules.bits` bits; 16-bit ones by their highest level."""
    image = read_stored(path, rules)
    return at_depth(image, depth_of(image.highest), rules.bits)


def read_stored(image: Path | np.ndarray, rules: ImageRules) -> DecodedImage:
    """Read an image, rotate it according to EXIF, crop it to the centred square, and reduce it.

    Colours are converted to sRGB (`in_srgb`). Transparent pixels are drawn on white, only
    the first frame is used, and colour is converted to grey by ITU-R BT.601 if the rules require
    grey. 16-bit grey is kept. Images with more than `PIL.Image.MAX_IMAGE_PIXELS` are not decoded.
    """
    if isinstance(image, np.ndarray):
        return _of_array(image, rules)
    if not image.is_file():
        raise ImageError("broken", "not a file")
    try:
        if image.suffix.lower() == ARRAY:
            return _of_array(np.load(image, allow_pickle=False, mmap_mode="r"), rules)
        with Image.open(image, formats=formats()) as opened:
            return _of_file(opened, rules)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        pixels = re.search(r"\((\d+) pixels\)", str(error))
        raise _too_many(int(pixels[1]) if pixels else 0) from error
    except Exception as error:  # pillow's decoders raise many kinds of errors on damaged data
        raise ImageError("broken", _reason(image, error)) from error


def at_depth(image: DecodedImage, stored_bits: int, bits: int) -> DecodedImage:
    """Convert levels (16-bit ones have `stored_bits`) to `bits` bits, with a remark if scaled."""
    if image.deep == (bits > EIGHT):
        if image.highest >= 2**bits:
            most = f"{bits} bits hold 0 to {2**bits - 1:,}"
            raise ImageError("too bright", f"a level of {image.highest:,}, {most}")
        return image
    from_bits, remark = stored_bits, SIXTEEN_BIT
    if not image.deep:
        from_bits, remark = EIGHT, f"8-bit, scaled to {bits} bits"
    elif stored_bits < DEPTHS[-1]:
        remark = f"{stored_bits}-bit in 16-bit files, scaled to {bits} bits"
    levels = rescale_levels(image.levels, from_bits, bits)
    return dataclasses.replace(image, levels=levels, remarks=(remark, *image.remarks))


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


def _reason(path: Path, error: Exception) -> str:
    if path.stat().st_size == 0:
        return "an empty file"
    if isinstance(error, UnidentifiedImageError):
        return "not an image that pillow knows"
    if isinstance(error, MemoryError):
        return "not enough memory"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return show_path(reason.strip().split("\n")[0]) or type(error).__name__


def _of_file(opened: Image.Image, rules: ImageRules) -> DecodedImage:
    _check_size(opened.width, opened.height, rules)
    # More than 8 bits per level; pillow forgets it as it loads colour.
    is_deep = opened.mode.startswith("I") or ";16" in str(getattr(opened, "tile", ""))
    opened.load()
    with contextlib.suppress(Exception):  # damaged EXIF data; the pixels are still valid
        ImageOps.exif_transpose(opened, in_place=True)
    coloured, remark = in_srgb(opened)
    levels, remarks = _levels(coloured)
    remarks += [remark] if remark else []
    if is_deep and levels.dtype == np.uint8:  # pillow scales 16-bit colour to 8 bits
        remarks.insert(0, SIXTEEN_BIT)
    with contextlib.suppress(Exception):  # a damaged second frame does not matter
        remarks += [SEVERAL_FRAMES] if getattr(opened, "is_animated", False) else []
    return _fitted(levels, rules, remarks)


def _levels(image: Image.Image) -> tuple[np.ndarray, list[str]]:
    if image.mode == "F":
        raise ImageError("no known range", "floating-point levels")
    if image.mode.startswith("I"):
        if has_transparent_colour(image):
            raise ImageError("transparent", "a transparent level of more than 8 bits")
        return _sixteen_bit(np.asarray(image)[..., None]), []
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        shows = clear.getchannel("A").getextrema()[0] != 255
        opaque = Image.alpha_composite(white, clear).convert("RGB")
        return np.asarray(opaque), [TRANSPARENT] if shows else []
    # Avoid a conversion, which would copy a possibly large image.
    wanted = "L" if image.mode in ("1", "L") else "RGB"
    levels = np.asarray(image if image.mode == wanted else image.convert(wanted))
    remarks = [CMYK] if image.mode == "CMYK" else []
    return levels[..., None] if wanted == "L" else levels, remarks


def _sixteen_bit(values: np.ndarray) -> np.ndarray:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ImageError("no known range", f"32-bit integers from {low} to {high}")
    return values.astype(np.uint16)


def _of_array(stored: Any, rules: ImageRules) -> DecodedImage:
    if not isinstance(stored, np.ndarray):
        stored.close()
        raise ImageError("broken", "an npz archive with the name of one array")
    levels = stored[..., None] if stored.ndim == 2 else stored
    if levels.ndim != 3 or levels.shape[-1] not in (1, 3):
        wanted = "wanted [height, width], with 1 or 3 channels if any"
        raise ImageError("broken", f"an array {list(stored.shape)}, {wanted}")
    if levels.dtype.kind not in "iu":
        raise ImageError("no known range", f"{levels.dtype} levels")
    _check_size(levels.shape[1], levels.shape[0], rules)
    whole = np.asarray(levels)
    return _fitted(whole if whole.dtype == np.uint8 else _sixteen_bit(whole), rules, [])


def _fitted(levels: np.ndarray, rules: ImageRules, remarks: list[str]) -> DecodedImage:
    height, width = levels.shape[:2]
    return DecodedImage(
        fit_levels(levels, rules), (width, height), tuple(remarks), int(levels.max())
    )
