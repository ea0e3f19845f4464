"""Lossless image files as yardsticks of a density: bits for each number of an image."""

import importlib
import importlib.util
import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

JPEG_XL = "pillow_jxl"  # the module that teaches pillow JPEG XL, of onepass[jxl]
NAMES = {"webp": "WebP", "jpeg_xl": "JPEG XL"}


def codec_bits_per_dim(images: Iterable[np.ndarray]) -> dict[str, float]:
    """Mean bits per dimension of images uint8 [height, width, 1 or 3], by codec.

    "jpeg_xl" is left out where its package is not installed.
    """
    codecs = {"webp": webp_bits_per_dim}
    if importlib.util.find_spec(JPEG_XL) is not None:
        codecs["jpeg_xl"] = jpeg_xl_bits_per_dim
    each = [[bits_per_dim(image) for bits_per_dim in codecs.values()] for image in images]
    return dict(zip(codecs, map(float, np.mean(each, 0)), strict=True))


def webp_bits_per_dim(image: np.ndarray) -> float:
    """Bits for each number of an image uint8 [height, width, 1 or 3] in lossless WebP, its best.

    A grey image is stored as one of three equal channels, which WebP knows to be cheap.
    """
    colour = np.repeat(image, 3, -1) if image.shape[-1] == 1 else image
    return _bits(colour, "WEBP", quality=100, method=6) / image.size


def jpeg_xl_bits_per_dim(image: np.ndarray) -> float:
    """Bits for each number of an image uint8 [height, width, 1 or 3] in lossless JPEG XL."""
    importlib.import_module(JPEG_XL)
    return _bits(image[..., 0] if image.shape[-1] == 1 else image, "JXL", effort=9) / image.size


def _bits(image: np.ndarray, container: str, **options) -> float:
    file = io.BytesIO()
    Image.fromarray(image).save(file, container, lossless=True, **options)
    return 8.0 * len(file.getvalue())
