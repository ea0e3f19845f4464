"""Bits per dimension of lossless image codecs, for comparison with densities."""

import importlib
import importlib.util
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

JPEG_XL = "pillow_jxl"  # module that adds JPEG XL to pillow; the extra `jxl` installs it
NAMES = {"webp": "WebP", "jpeg_xl": "JPEG XL"}  # codecs for 8-bit images
DEEP_NAMES = {"png": "16-bit PNG"}


def codec_bits_per_dim(images: Iterable[np.ndarray]) -> dict[str, float]:
    """Return {codec: mean bits per dimension} of images uint8 [height, width, 1 or 3].

    "jpeg_xl" is left out if its package is not installed. For uint16 images there is only "png".
    """
    each = [_by_codec(image) for image in images]
    return {name: float(np.mean([bits[name] for bits in each])) for name in each[0]}


def codec_bits_by_scale(
    images: Sequence[np.ndarray], size: int, doublings: Sequence[int]
) -> dict[str, dict]:
    """Return the bits that lossless files need for each doubling, per value that it adds.

    This is the file size of the sub-sampled image after the doubling minus the file size before it,
    divided by the number of values (pixels times channels) that the doubling adds.

    Returns:
      "codec" {name: mean bits per dimension over all doublings} and "codec_by_scale" {size: {name:
      mean bits per dimension}}.
    """
    if not doublings:
        return {"codec": {}, "codec_by_scale": {}}
    added: dict[int, list[dict[str, float]]] = {doubling: [] for doubling in doublings}
    totals = []
    for image in images:
        each = {*doublings, *(s // 2 for s in doublings)}
        scales = {s: np.ascontiguousarray(image[:: size // s, :: size // s]) for s in each}
        bits = {s: _by_codec(small) for s, small in scales.items()}
        sizes = {s: small.size for s, small in scales.items()}
        more = {
            s: {n: bits[s][n] * sizes[s] - bits[s // 2][n] * sizes[s // 2] for n in bits[s]}
            for s in doublings
        }
        new = {s: sizes[s] - sizes[s // 2] for s in doublings}
        for s in doublings:
            added[s].append({name: value / new[s] for name, value in more[s].items()})
        names = more[doublings[0]]
        totals.append({n: sum(of[n] for of in more.values()) / sum(new.values()) for n in names})
    return {"codec": _means(totals), "codec_by_scale": {s: _means(v) for s, v in added.items()}}


def _means(each: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([bits[name] for bits in each])) for name in each[0]}


def _by_codec(image: np.ndarray) -> dict[str, float]:
    if image.dtype == np.uint16:
        return {"png": png_bits_per_dim(image)}
    found = {"webp": webp_bits_per_dim(image)}
    if importlib.util.find_spec(JPEG_XL) is not None:
        found["jpeg_xl"] = jpeg_xl_bits_per_dim(image)
    return found


def png_bits_per_dim(image: np.ndarray) -> float:
    """Return the bits per dimension of uint16 [height, width, 1] in PNG, at best compression."""
    file = io.BytesIO()
    Image.fromarray(image[..., 0]).save(file, "PNG", optimize=True)
    return 8.0 * len(file.getvalue()) / image.size


def webp_bits_per_dim(image: np.ndarray) -> float:
    """Return bits per dimension of uint8 [height, width, 1 or 3] as lossless WebP, grey as RGB."""
    colour = np.repeat(image, 3, -1) if image.shape[-1] == 1 else image
    return _bits(colour, "WEBP", quality=100, method=6) / image.size


def jpeg_xl_bits_per_dim(image: np.ndarray) -> float:
    """Return the bits per dimension of uint8 [height, width, 1 or 3] in lossless JPEG XL."""
    importlib.import_module(JPEG_XL)
    return _bits(image[..., 0] if image.shape[-1] == 1 else image, "JXL", effort=9) / image.size


def _bits(image: np.ndarray, container: str, **options: Any) -> float:
    file = io.BytesIO()
    Image.fromarray(image).save(file, container, lossless=True, **options)
    return 8.0 * len(file.getvalue())
