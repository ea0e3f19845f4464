"""Checks of a request for images, before the first image is sampled."""

import dataclasses
from typing import Any

import numpy as np

from onepass.draw import Draw
from onepass.foundation.arguments import check_seed, check_unmasked, whole_number
from onepass.foundation.errors import UserError
from onepass.foundation.tensorflow_state import check_compiler, check_eager
from onepass.samplers import SAMPLERS
from pixelcnn.density import ImageDensity
from pixelcnn.networks.config import part_names
from pixelcnn.networks.multiscale import Multiscale
from pixelcnn.sampling.samplers import temperatures_of


def check_request(density: ImageDensity, draw: Draw) -> Draw:
    """Return a request with its defaults and Python integers; the condition is not checked.

    Args:
      draw: the request. A multiscale model begins with a smaller image [side, side, channels] as
        the prefix, a PixelCNN with pixels [n, channels] or rows of pixels [rows, width, channels].
    """
    side = draw.length if draw.length is not None else density.config.data.size
    if isinstance(side, tuple | list):
        channels = density.config.data.channels
        if len(side) != 3 or side[0] != side[1] or side[2] != channels:
            shape = f"(side, side, {channels})"
            raise UserError(f"`length` must be a side or {shape}, got {side!r}.")
        side = side[0]
    check_compiler()
    heat = 1.0 if draw.temperature is None else draw.temperature
    found = dataclasses.replace(
        draw,
        num=whole_number(draw.num, "num"),
        length=whole_number(side, "length"),
        batch=whole_number(draw.batch, "batch"),
        seed=check_seed(draw.seed),
        temperature=heat if isinstance(heat, int | float) else tuple(heat),
        prefix=_check_prefix(density, draw.prefix, side),
    )
    _check(density, found)
    return found


def _check_prefix(density: ImageDensity, prefix: Any, size: int) -> np.ndarray | None:
    if prefix is None:
        return None
    check_unmasked(prefix, "prefix")
    prefix, channels = np.asarray(prefix), density.config.data.channels
    if prefix.ndim not in (2, 3) or prefix.shape[-1] != channels:
        rule = f"[n, {channels}], or [rows, width, {channels}]"
        raise ValueError(f"`prefix` must be pixels {rule}, got {list(prefix.shape)}.")
    if density.multiscale is not None:
        if prefix.ndim == 2:
            raise UserError("Only a PixelCNN can continue from the first pixels of an image.")
        return prefix
    if prefix.ndim == 3 and prefix.shape[1] != size:
        raise UserError("A PixelCNN cannot enlarge an image; a multiscale model can.")
    pixels = prefix.reshape(-1, channels)
    if len(pixels) > size**2:
        raise ValueError(f"`prefix` must have at most {size**2} pixels, got {len(pixels)}.")
    return pixels


def _check(density: ImageDensity, draw: Draw) -> None:
    prefix, config = draw.prefix, density.config
    if density.multiscale is None:
        _check_pixelcnn(density, draw.length, draw.temperature)
    else:
        temperatures_of(draw.temperature, len(density.multiscale.sizes))
        _check_sizes(density.multiscale, draw.length, None if prefix is None else prefix.shape)
    if prefix is not None and prefix.size:
        shape = (None, *prefix.shape[1:]) if prefix.ndim == 2 else (None, None, prefix.shape[2])
        check_images("prefix", prefix, shape, config.output.levels)
    _check_sampler(density, draw.method, draw.batch)
    if not 0 <= draw.guidance < float("inf"):
        raise UserError(f"The guidance must be 0 or more and finite, got {draw.guidance:g}.")
    if draw.guidance and not config.conditioning.has_null:
        raise UserError("The model has no null condition to be guided by.")


def _check_sampler(density: ImageDensity, sampler: str, batch: int) -> None:
    known = ("auto", *sorted(SAMPLERS))
    if sampler not in known:
        raise UserError(f"`method` must be one of {', '.join(known)}, got {sampler}.")
    if sampler == "naive" and density.multiscale is not None:
        raise UserError("Only a PixelCNN has a naive sampler.")
    if batch > 1 and sampler != "fixed-point":
        raise UserError('`batch` > 1 requires `method="fixed-point"`.')


def _check_sizes(model: Multiscale, size: int, shape: tuple[int, ...] | None) -> None:
    sizes = model.sizes
    if size not in sizes:
        raise UserError(f"The model draws {', '.join(map(str, sizes))} pixels a side, not {size}.")
    smaller = [s for s in sizes if s < size]
    first = 0 if shape is None else max(shape[:2])
    if shape is not None and (
        first not in smaller or (shape[0] != shape[1] and not model.any_shape)
    ):
        form = "have a longer side of" if model.any_shape else "be square with a side of"
        raise UserError(
            f"The image to start from must {form} {' or '.join(map(str, smaller))} pixels, "
            f"got {shape[1]}x{shape[0]}."
        )
    needed = [p for p in part_names(sizes) if first < int(p.split(".")[0]) <= size]
    missing = [part for part in needed if part not in model.parts]
    if missing == [str(sizes[0])] and model.any_shape:
        raise UserError("The model enlarges images: name one to start from (`--start`).")
    if missing:
        raise UserError(f"The run has not trained {', '.join(missing)}; it cannot draw.")


def _check_pixelcnn(density: ImageDensity, size: int, temperature: Any) -> None:
    if not isinstance(temperature, int | float):
        raise UserError("A PixelCNN has one scale and takes one temperature.")
    temperatures_of(temperature, 1)
    trained = density.config.data.size
    if density.conditioner.map_channels and size != trained:
        raise UserError(f"The condition is a map of {trained} pixels a side, not {size}.")


def check_images(name: str, images: np.ndarray, shape: tuple[int | None, ...], levels: int) -> None:
    """Raise a ValueError unless images have the expected shape and integers below `levels`.

    None in `shape` matches any size of at least 1. Floats are rejected even if they are whole
    numbers, since they could be images scaled to [0, 1].
    """
    check_eager()
    check_unmasked(images, name)
    images = np.asarray(images)
    fits = images.ndim == len(shape) and all(
        found == wanted or (wanted is None and found >= 1)
        for found, wanted in zip(images.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(f"`{name}` must have the shape [{wanted}], got {list(images.shape)}.")
    if images.dtype.kind not in "iu":
        rule = f"whole numbers from 0 to {levels - 1:,} (uint8 or another integer type)"
        raise ValueError(f"`{name}` must be {rule}, got {images.dtype}.")
    low, high = int(images.min()), int(images.max())
    if low < 0 or high >= levels:
        raise ValueError(f"`{name}` must be in 0 to {levels - 1:,}, got {low:,} to {high:,}.")
