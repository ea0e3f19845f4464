"""Decoding of image files to levels: upright, square and reduced, in sRGB, with remarks.

A file can declare a different colour space: by an ICC profile (AdobeRGB, Display P3, CMYK), by the
gamma and the primaries in a PNG, or by the EXIF data of a camera that is set to AdobeRGB.
"""

import contextlib
import dataclasses
import functools
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from onepass.foundation.errors import UserError
from onepass.foundation.folders import show_path
from pixelcnn.data.image_rules import ImageRules, Reduce

EIGHT = 8
DEPTHS = (8, 10, 12, 14, 16)  # depths of cameras and scanners; files store 8 or 16 bits


def depth_of(highest: int) -> int:
    """Return the smallest depth in bits, out of `DEPTHS`, that can represent level `highest`."""
    return next(bits for bits in DEPTHS if highest < 2**bits)


def dtype_of(bits: int) -> type[np.unsignedinteger]:
    """Return the dtype of levels with a number of bits: uint8 up to 8 bits, else uint16."""
    return np.uint8 if bits <= EIGHT else np.uint16


def rescale_levels(levels: np.ndarray, from_bits: int, bits: int) -> np.ndarray:
    """Scale levels to a depth of `bits`, such that the highest levels correspond; round half up."""
    if from_bits == bits:
        return levels.astype(dtype_of(bits))
    most, highest = 2**from_bits - 1, 2**bits - 1
    return ((2 * levels.astype(np.int64) * highest + most) // (2 * most)).astype(dtype_of(bits))


def min_log_scale_of(bits: int) -> float:
    """Return the lower bound of log-scales that corresponds, in levels, to -7 at 8 bits."""
    return -7.0 - (bits - EIGHT) * math.log(2.0)


CONVERTED = "of another colour profile, converted to sRGB"
KEPT = "of another colour profile, its levels kept as stored"
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
    if profile:
        return _by_profile(image, bytes(profile))
    found = _declared_colour(image)
    if found is None:
        return image, None
    if image.mode.startswith(("I", "F")):
        return image, KEPT
    return _with_alpha(image, _plain(image, "RGB"), lambda plain: _by_numbers(plain, *found))


def _by_profile(image: Image.Image, profile: bytes) -> tuple[Image.Image, str | None]:
    try:
        mode = MODES.get(_open_profile(profile).profile.xcolor_space, "")
        if not _fits(image.mode, mode):
            return image, KEPT
        if _is_srgb(profile, mode):
            return image, None
        transform = _transform(profile, mode)
        plain = _plain(image, mode)
        return _with_alpha(image, plain, lambda each: ImageCms.applyTransform(each, transform))
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):  # a damaged profile
        return image, KEPT


def _fits(stored: str, mode: str) -> bool:
    if not mode or stored.startswith(("I", "F")):
        return False
    if mode == "CMYK" or stored == "CMYK":
        return mode == stored
    return mode == "RGB" or stored in GREY


def _open_profile(profile: bytes) -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(io.BytesIO(profile))


def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform:
    return ImageCms.buildTransform(
        _open_profile(profile),
        ImageCms.createProfile("sRGB"),
        mode,
        "RGB",
        flags=ImageCms.Flags.NOCACHE,
    )


@functools.lru_cache(maxsize=64)
def _is_srgb(profile: bytes, mode: str) -> bool:
    if mode == "CMYK":
        return False
    steps = np.linspace(0, 255, 9 if mode == "RGB" else 256).astype(np.uint8)
    grid = np.stack(np.meshgrid(steps, steps, steps), -1) if mode == "RGB" else steps[None]
    levels = grid.reshape(1, -1, 3) if mode == "RGB" else grid
    made = ImageCms.applyTransform(Image.fromarray(levels), _transform(profile, mode))
    wanted = levels if mode == "RGB" else np.repeat(levels[..., None], 3, -1)
    return int(np.abs(np.asarray(made, np.int16) - wanted).max()) <= SAME_LEVELS


def _plain(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def _with_alpha(
    image: Image.Image, plain: Image.Image, convert: Callable[[Image.Image], Any]
) -> tuple[Image.Image, str]:
    made = convert(plain)
    if image.mode in GREY:
        made = made.getchannel(1)
    if image.has_transparency_data:
        made.putalpha(image.convert("RGBA").getchannel("A"))
    return made, CONVERTED


def _declared_colour(image: Image.Image) -> tuple[float, tuple[float, ...]] | None:
    """Return a file's gamma, from light to levels, and primaries, or None to treat it as sRGB."""
    if "srgb" in image.info:
        return None
    gamma, places = image.info.get("gamma"), image.info.get("chromaticity")
    if gamma is None and places is None:
        return (ADOBE_GAMMA, ADOBE) if _says_adobe(image) else None
    gamma = SRGB_GAMMA if not gamma or not 0.05 < gamma < 20 else float(gamma)
    white, primaries = WHITE, SRGB
    if places is not None and len(places) == 8 and _differ(places[2:], SRGB):
        white, primaries = tuple(places[:2]), tuple(places[2:])
    if _differ(white, WHITE) or (abs(gamma - SRGB_GAMMA) < SAME_GAMMA and primaries == SRGB):
        return None
    return gamma, primaries


def _differ(places: tuple[float, ...], others: tuple[float, ...]) -> bool:
    return bool(np.max(np.abs(np.subtract(places, others))) > SAME_PLACE)


def _says_adobe(image: Image.Image) -> bool:
    try:
        mark = image.getexif().get_ifd(INTEROPERABILITY).get(1)
    except Exception:  # pillow's EXIF reader raises many kinds of errors on damaged bytes
        return False
    return str(mark).rstrip("\\0") == ADOBE_MARK


def _by_numbers(image: Image.Image, gamma: float, primaries: tuple[float, ...]) -> Image.Image:
    decode = ((np.arange(256) / 255.0) ** (1.0 / gamma)).astype(np.float32)
    matrix = (np.linalg.inv(_to_xyz(SRGB)) @ _to_xyz(primaries)).T.astype(np.float32)
    levels = np.array(image)
    for row in levels:  # row by row to save memory
        light = np.clip(decode[row] @ matrix, 0.0, 1.0)
        curve = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
        row[:] = np.rint(255.0 * curve)
    return Image.fromarray(levels)


def _to_xyz(primaries: tuple[float, ...]) -> np.ndarray:
    columns = [[x / y, 1.0, (1.0 - x - y) / y] for x, y in np.reshape(primaries, [3, 2])]
    base = np.array(columns).T
    white = np.array([WHITE[0] / WHITE[1], 1.0, (1.0 - sum(WHITE)) / WHITE[1]])
    return base * np.linalg.solve(base, white)


def centred_square(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the largest centred square, in pixels."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _summed_rows(levels: np.ndarray, size: int) -> np.ndarray:
    side, rest = len(levels), levels.shape[1:]
    if side % size == 0:
        return size * levels.reshape(size, side // size, *rest).sum(axis=1, dtype=np.int64)
    rows = []
    for cell in range(size):
        low, high = cell * side, (cell + 1) * side
        first, stop = low // size, -(-high // size)
        weights = np.diff(np.clip(np.arange(first, stop + 1) * size, low, high))
        rows.append(weights @ levels[first:stop].reshape(stop - first, -1).astype(np.int64))
    return np.stack(rows).reshape(size, *rest)


def area_averaged(levels: np.ndarray, size: int, width: int | None = None) -> np.ndarray:
    """Return the mean level over each cell's area, [size, width, channels], rounded half up."""
    area = levels.shape[0] * levels.shape[1]
    rows = _summed_rows(levels, size).swapaxes(0, 1)
    summed = _summed_rows(rows, size if width is None else width).swapaxes(0, 1)
    return ((2 * summed + area) // (2 * area)).astype(levels.dtype)


def subsample_pixels(levels: np.ndarray, size: int) -> np.ndarray:
    """Return every k-th pixel of the centred square with side k * size, [size, size, ...].

    k is floor(side / size). The upper left pixel of each block of k x k pixels is used, like group
    1 of Reed et al. 2017, section 3.
    """
    step = len(levels) // size
    first = (len(levels) - step * size) // 2
    chosen = slice(first, first + step * (size - 1) + 1, step)
    return levels[chosen, chosen]


def grey(levels: np.ndarray) -> np.ndarray:
    """Convert RGB [..., 3] to luma [..., 1] by ITU-R BT.601, in 16-bit fixed point."""
    weighted = levels.astype(np.int64) @ np.array([19595, 38470, 7471], np.int64)
    return ((weighted + 32768) >> 16).astype(levels.dtype)[..., None]


def with_channels(levels: np.ndarray, channels: int) -> np.ndarray:
    """Convert an image [..., 1 or 3] to `channels` channels, from grey to RGB or RGB to luma."""
    if levels.shape[-1] == channels:
        return levels
    return grey(levels) if channels == 1 else np.repeat(levels, 3, axis=-1)


def fit_longer_side(levels: np.ndarray, size: int, channels: int) -> np.ndarray:
    """Reduce an image of 1 or 3 channels to a longer side of `size`, [height, width, channels]."""
    height, width = levels.shape[:2]
    longer = max(height, width)
    sides = [max(1, (2 * side * size + longer) // (2 * longer)) for side in (height, width)]
    return np.ascontiguousarray(with_channels(area_averaged(levels, *sides), channels))


def fit_square(levels: np.ndarray, size: int, channels: int, reduce: Reduce) -> np.ndarray:
    """Crop uint8 or uint16 levels to the centred square, reduced to [size, size, channels]."""
    left, top, right, bottom = centred_square(levels.shape[1], levels.shape[0])
    square = levels[top:bottom, left:right]
    reduced = (
        subsample_pixels(square, size) if reduce == "subsample" else area_averaged(square, size)
    )
    return np.ascontiguousarray(with_channels(reduced, channels))


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
    """Convert levels (16-bit ones have `stored_bits`) to `bits` bits, with a remark if scaled."""
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

    Colours are converted to sRGB (`in_srgb`). Transparent pixels are drawn on white, only
    the first frame is used, and colour is converted to grey by ITU-R BT.601 if the rules require
    grey. 16-bit grey is kept. Images with more than `PIL.Image.MAX_IMAGE_PIXELS` are not decoded.
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
