"""Conversion of an image's colours to sRGB.

A file can declare a different colour space: by an ICC profile (AdobeRGB, Display P3, CMYK), by the
gamma and the primaries in a PNG, or by the EXIF data of a camera that is set to AdobeRGB.
"""

import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageCms

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
    """Return a new transform from a profile to sRGB; transforms must not be shared by threads."""
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
    """Return the gamma and primaries that a file declares, or None to treat it as sRGB.

    The gamma is the exponent from light to levels.
    """
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
