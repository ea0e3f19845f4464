"""Checks of the arguments of `ImageModel.sample`, before the first image is sampled."""

from typing import Any

import numpy as np

from onepass.foundation.arguments import check_unmasked, checked_seed, whole_number
from onepass.foundation.errors import UserError
from onepass.foundation.tensorflow_state import check_compiler, check_eager
from onepass.samplers import SAMPLERS
from pixelcnn.density import ImageDensity
from pixelcnn.networks.config import part_names
from pixelcnn.networks.multiscale import Multiscale
from pixelcnn.sampling.generation import Request
from pixelcnn.sampling.multiscale_sampler import temperatures_of


def checked_draw(seed: Any, num: Any, size: Any, batch: Any) -> tuple[int, int, int, int]:
    """Return seed, number of images, their size and number per pass as Python integers.

    Raises:
      ValueError: one is not an integer, or is out of range.
      UserError: TensorFlow cannot draw images here.
    """
    check_compiler()
    counts = whole_number(num, "num"), whole_number(size, "length"), whole_number(batch, "batch")
    return checked_seed(seed), *counts


def with_prefix(density: ImageDensity, request: Request, prefix: Any) -> Request:
    """Return a request with the elements that its images begin with.

    Args:
      density: the networks; a multiscale model begins with a smaller image, a PixelCNN with pixels.
      request: the request.
      prefix: integers, a smaller image [side, side, channels] for a multiscale model, pixels
        [n, channels] or rows of pixels [rows, width, channels] for a PixelCNN; None: no prefix.

    Raises:
      UserError: the prefix does not fit the model.
    """
    if prefix is None:
        return request
    check_unmasked(prefix, "prefix")
    prefix, size, channels = np.asarray(prefix), request.size, density.config.data.channels
    if prefix.ndim not in (2, 3) or prefix.shape[-1] != channels:
        rule = f"[n, {channels}], or [rows, width, {channels}]"
        raise ValueError(f"`prefix` must be pixels {rule}, got {list(prefix.shape)}.")
    if density.multiscale is not None:
        if prefix.ndim == 2:
            raise UserError("Only a PixelCNN can continue from the first pixels of an image.")
        return request._replace(start=prefix)
    if prefix.ndim == 3 and prefix.shape[1] != size:
        raise UserError("A PixelCNN cannot enlarge an image; a multiscale model can.")
    pixels = prefix.reshape(-1, channels)
    if len(pixels) > size**2:
        raise ValueError(f"`prefix` must have at most {size**2} pixels, got {len(pixels)}.")
    image = np.zeros([size**2, channels], prefix.dtype)
    image[: len(pixels)] = pixels
    return request._replace(given=(image.reshape(size, size, channels), len(pixels)))


def check_request(density: ImageDensity, request: Request) -> None:
    """Raise an error for a request that the density cannot fulfil; the condition is not checked.

    Raises:
      UserError: an argument does not fit the model.
      ValueError: an image has a wrong shape, or a level out of range.
    """
    given, start, size, config = request.given, request.start, request.size, density.config
    if density.multiscale is None:
        _check_pixelcnn(density, size, request.temperature, start)
    else:
        temperatures_of(request.temperature, len(density.multiscale.sizes))
        if given is not None:
            raise UserError("Only a PixelCNN can continue from the first pixels of an image.")
        _check_sizes(density.multiscale, size, None if start is None else start.shape)
    channels, levels = config.data.channels, config.output.levels
    if given is not None:
        check_images("prefix", given[0], (size, size, channels), levels)
    if start is not None:
        check_images("prefix", start, (None, None, channels), levels)
    _check_sampler(density, request.sampler, request.batch)
    if not 0 <= request.guidance < float("inf"):
        raise UserError(f"The guidance must be 0 or more and finite, got {request.guidance:g}.")
    if request.guidance and not config.conditioning.has_null:
        raise UserError("The model has no null condition to be guided by.")


def _check_sampler(density: ImageDensity, sampler: str, batch: int) -> None:
    if sampler not in SAMPLERS:
        known = ", ".join(("auto", *SAMPLERS))
        raise UserError(f"`method` must be one of {known}, got {sampler}.")
    if sampler == "naive" and density.multiscale is not None:
        raise UserError("Only a PixelCNN has a naive sampler.")
    if batch > 1 and sampler != "fixed-point":
        raise UserError('`batch` > 1 requires `method="fixed-point"`.')


def _check_sizes(model: Multiscale, size: int, shape: tuple[int, ...] | None) -> None:
    """Raise a UserError if a size, or the shape of an image to enlarge, does not fit the model."""
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


def _check_pixelcnn(density: ImageDensity, size: int, temperature: Any, start: Any) -> None:
    if start is not None:
        raise UserError("A PixelCNN cannot enlarge an image; a multiscale model can.")
    if not isinstance(temperature, int | float):
        raise UserError("A PixelCNN has one scale and takes one temperature.")
    temperatures_of(temperature, 1)
    trained = density.config.data.size
    if density.conditioner.map_channels and size != trained:
        raise UserError(f"The condition is a map of {trained} pixels a side, not {size}.")


def check_images(name: str, images: np.ndarray, shape: tuple[int | None, ...], levels: int) -> None:
    """Raise a ValueError unless images have the expected shape and integers below `levels`.

    None in `shape` matches any size of at least 1. Floats are rejected even if they are whole
    numbers, since they could be images scaled to [0, 1]. Raise UserError where no model can run.
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
