"""Sampling of images from a density and a seed, by one compiled program per size.

A program samples one image at a time, except for batches of fixed-point passes, since a different
batch size could change the order of sums, and thereby their last bits and occasionally a pixel.
Image n of a seed does not depend on what else is sampled.
"""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.likelihoods.noise import as_key
from onepass.samplers import SAMPLERS
from onepass.samplers.compiled import Compiled
from onepass.samplers.windows import FixedPoint, by_windows
from pixelcnn.autoregression import (
    ACTIVE_ROWS,
    Forecast,
    PixelDistribution,
    PixelSymbols,
    linear_forecast,
)
from pixelcnn.data.depth import dtype_of
from pixelcnn.density import ImageDensity
from pixelcnn.networks.conditioning import Condition, Conditioner
from pixelcnn.networks.config import check_size
from pixelcnn.networks.multiscale import Multiscale
from pixelcnn.networks.pixelcnn import PixelCNN
from pixelcnn.sampling.enlargement import Enlarger
from pixelcnn.sampling.guidance import drop_guidance_pair, pair_for_guidance
from pixelcnn.sampling.multiscale_sampler import (
    SamplingInputs,
    multiscale_words,
    sample_base,
    sample_scales,
    temperatures_of,
)
from pixelcnn.sampling.pixelcnn_sampler import Prefix, image_words, sample

# XLA's convolutions are faster on small images, TensorFlow's on large ones.
LARGEST_COMPILED = 64


def sampler_of(
    method: str, *, forecast: Forecast | None = linear_forecast, **options: Any
) -> Callable[..., Any]:
    """Return a sampler of a PixelCNN: a function with the arguments of `sample`.

    Only the cached sampler takes a `prediction`.

    Args:
      method: "cached", or another sampler in `SAMPLERS`. The sampler "fixed-point" returns a
        `FixedPoint`, all others return images.
      forecast: the `forecast` of `PixelSymbols`.
      **options: further arguments of the sampler (of `by_windows` for "fixed-point").
    """
    if method == "cached":
        return partial(sample, **options)
    run: Any = SAMPLERS[method]
    if method == "fixed-point":
        run, options = by_windows, {"active_rows": ACTIVE_ROWS, **options}

    def draw(
        network: PixelCNN,
        words: tf.Tensor,
        condition: Condition,
        given: Prefix | None = None,
        temperature: float | tf.Tensor = 1.0,
        guidance: float | tf.Tensor | None = None,
    ) -> Any:
        distribution = PixelDistribution(network.output, network.output_config, guidance)
        placed, symbols = (
            network.add_coordinates(condition, words),
            PixelSymbols(network, None, forecast),
        )
        return run(symbols, distribution, words, placed, temperature, given, **options)

    return draw


class Request(NamedTuple):
    """A request for images.

    Attributes:
      rows: index of each image in the seed's sequence of images.
      seed: random seed, an integer in [0, 2^64).
      size: side of the images in pixels.
      condition: the conditioner's inputs, with one row for all images or one row per image.
      temperature: one number, or one per scale.
      given: an image, integers [height, width, channels], and the number of its pixels to keep, in
        raster order (PixelCNN).
      start: a small image to enlarge, integers [side, side, channels] (multiscale), of any height
        and width if the factors have no coordinates.
      sampler: name of the sampler of a PixelCNN, or of a multiscale model's base.
      guidance: guidance weight; 0 samples the model.
      batch: number of images per fixed-point pass; a finished image is replaced by the next one.
    """

    rows: tuple[int, ...]
    seed: int
    size: int
    condition: dict[str, np.ndarray]
    temperature: float | tuple[float, ...] = 1.0
    given: tuple[np.ndarray, int] | None = None
    start: np.ndarray | None = None
    sampler: str = "cached"
    guidance: float = 0.0
    batch: int = 1


class ImageSampler:
    """A sampler of a density, under its current weights.

    Attributes:
      passes: number of fixed-point passes for the latest image (or its base, if multiscale); None
        for other samplers.
      batch_passes: number of fixed-point passes for the latest image's batch, or None.
    """

    def __init__(self, density: ImageDensity) -> None:
        self.density = density
        self.passes: int | None = None
        self.batch_passes: int | None = None
        self._programs = Compiled()

    def images(self, request: Request) -> Iterator[list[np.ndarray]]:
        """Yield the scales of each image, [side, side, channels], smallest first.

        A PixelCNN has one scale. Levels are uint8, or uint16 for more than 8 bits.
        """
        number = len(request.rows) if request.sampler == "fixed-point" and request.batch > 1 else 1
        for first in range(0, len(request.rows), number):
            yield from self._sample(request, slice(first, first + number))

    def _sample(self, request: Request, which: slice) -> Iterator[list[np.ndarray]]:
        """Yield the scales of the images in a slice of a request, drawn by one program."""
        rows = request.rows[which]
        batch = {name: _of(value, which, request) for name, value in request.condition.items()}
        noise = (as_key(request.seed), tf.constant(rows))
        model = self.density.multiscale
        if model is not None and model.any_shape and request.start is not None:
            for row in rows:
                yield list(self.enlarge_start(request, row))
            return
        program = self._program(request.sampler, request.size, min(request.batch, len(rows)))
        guidance = tf.constant(request.guidance, tf.float32) if request.guidance else None
        if model is None:
            given = _prefix_of(request, len(rows), self.density.config.data.channels)
            temperature = temperatures_of(request.temperature, 1)[0]
            drawn = count_passes(program(batch, *noise, given, temperature, guidance))
            scales = [drawn.levels]
        else:
            temperatures = temperatures_of(request.temperature, len(model.sizes))
            start = None if request.start is None else _repeat_image(request.start, len(rows))
            scales, drawn = program(batch, *noise, start, temperatures, guidance)
        counts = request.sampler == "fixed-point"
        kind = dtype_of(self.density.config.data.bits)
        for i in range(len(rows)):
            self.passes = int(drawn.passes[i]) if counts else None
            self.batch_passes = int(drawn.batch_passes) if counts else None
            yield [levels[i].numpy().astype(kind) for levels in scales]

    @cached_property
    def enlarger(self) -> Enlarger:
        """The `Enlarger` of a multiscale model whose factors have no coordinates."""
        model: Any = self.density.multiscale
        return Enlarger(model)

    def enlarge_start(
        self, request: Request, row: int, advance: Callable[[], None] = lambda: None
    ) -> Iterator[np.ndarray]:
        """Yield `request.start` and its enlargements, smallest first, with the noise of `row`."""
        heat = temperatures_of(request.temperature, len(self.enlarger.model.sizes)).numpy()
        start: Any = request.start
        drawn = self.enlarger.scales(start, request.size, as_key(request.seed), row, heat, advance)
        return (levels.astype(dtype_of(self.density.config.data.bits)) for levels in drawn)

    def _program(self, sampler: str, size: int, slots: int) -> Callable[..., Any]:
        conditioner, model = self.density.conditioner, self.density.multiscale
        options: dict[str, Any] = {"slots": slots} if sampler == "fixed-point" else {}
        draw = sampler_of(sampler, **options)

        def make() -> Callable[..., Any]:
            if model is not None:
                return multiscale_program(conditioner, model, size, None, draw)
            network: Any = self.density.pixelcnn
            return pixelcnn_program(conditioner, network, size, draw)

        return self._programs.once((sampler, size, slots), make)


def sample_pixelcnn(
    conditioner: Conditioner,
    network: PixelCNN,
    size: int,
    sampler: Callable[..., Any],
    batch: dict,
    seed: int | tf.Tensor,
    rows: tf.Tensor,
    given: Prefix | None,
    temperature: float | tf.Tensor,
    guidance: float | tf.Tensor | None = None,
) -> Any:
    """Return the output of a sampler for a batch of conditions.

    Args:
      conditioner: encodes the conditions.
      network: the PixelCNN.
      size: side of the images in pixels.
      sampler: a result of `sampler_of`.
      batch: the conditioner's inputs.
      seed: random seed, an integer in [0, 2^64) or a key uint32 [2].
      rows: index of each image in the seed's sequence of images, int32 [batch].
      given: pixels to keep, or None.
      temperature: 1 samples the model.
      guidance: guidance weight, or None.
    """
    words = image_words(network, seed, rows, size, size)
    condition, words, given = pair_for_guidance(conditioner, batch, guidance, words, given)
    drawn = sampler(network, words, condition, given, temperature, guidance=guidance)
    return drop_guidance_pair(guidance, drawn)


def pixelcnn_program(
    conditioner: Conditioner, network: PixelCNN, size: int, sampler: Callable[..., Any] = sample
) -> Callable[..., Any]:
    """Return `sample_pixelcnn`, compiled, as a function of the arguments starting at `batch`."""
    return tf.function(
        partial(sample_pixelcnn, conditioner, network, size, sampler),
        jit_compile=True,
        autograph=False,
    )


def sample_multiscale(
    conditioner: Conditioner,
    model: Multiscale,
    size: int,
    base_sampler: Callable[..., Any],
    batch: dict,
    words: tf.Tensor,
    start: tf.Tensor | None,
    temperatures: tf.Tensor,
    guidance: float | tf.Tensor | None = None,
) -> tuple[list[tf.Tensor], FixedPoint]:
    """Return all scales of images for a batch of conditions, and the base as a `FixedPoint`.

    Args:
      conditioner: encodes the conditions.
      model: the multiscale model.
      size: side of the largest image in pixels.
      base_sampler: a result of `sampler_of`, which draws the base.
      batch: the conditioner's inputs.
      words: random words, uint32 [batch, pixels, noise words], from `multiscale_words`.
      start: images to enlarge, int32 [batch, side, side, channels]; None: the base is drawn.
      temperatures: float32 [scales], base first; 1 samples the model.
      guidance: guidance weight, or None.
    """
    condition, words, start = pair_for_guidance(conditioner, batch, guidance, words, start)
    inputs = SamplingInputs(words, condition, temperatures, guidance)
    base = count_passes(sample_base(model, inputs, base_sampler) if start is None else start)
    return drop_guidance_pair(guidance, (sample_scales(model, inputs, size, base.levels), base))


def count_passes(drawn: tf.Tensor | FixedPoint) -> FixedPoint:
    """Return the output of a sampler as a `FixedPoint`, with 0 passes if it does not count them."""
    if isinstance(drawn, FixedPoint):
        return drawn
    return FixedPoint(drawn, tf.zeros([tf.shape(drawn)[0]], tf.int32), tf.constant(0))


def multiscale_program(
    conditioner: Conditioner,
    model: Multiscale,
    size: int,
    whole_size: int | None = None,
    base_sampler: Callable[..., Any] = sample,
) -> Callable[..., Any]:
    """Return `sample_multiscale`, compiled, as a function of the arguments starting at `batch`.

    In place of `words`, it takes the seed and the rows.

    Args:
      conditioner: encodes the conditions.
      model: the multiscale model.
      size: side of the largest image in pixels.
      whole_size: side of a larger image that the result should match exactly as one of its scales,
        so that the same kernels are chosen for both; None: `size`.
      base_sampler: a result of `sampler_of`, which draws the base.
    """
    check_size(size, model.config.base_size)
    small = (whole_size or size) <= LARGEST_COMPILED
    compiled = partial(tf.function, jit_compile=True, autograph=False)
    sampler = base_sampler if small else compiled(base_sampler)
    words_of = compiled(lambda seed, rows: multiscale_words(model, seed, rows, size))
    draw = partial(sample_multiscale, conditioner, model, size, sampler)

    @tf.function(jit_compile=small, autograph=False)
    def program(
        batch: dict[str, tf.Tensor], seed: int | tf.Tensor, rows: tf.Tensor, *arguments: Any
    ) -> tuple[list[tf.Tensor], FixedPoint]:
        return draw(batch, words_of(seed, rows), *arguments)

    return program


def _of(value: np.ndarray, which: slice, request: Request) -> tf.Tensor:
    """Return an array of a request's condition for a slice of its rows."""
    rows = request.rows[which]
    return tf.constant(value[which] if len(value) > 1 else np.repeat(value, len(rows), 0))


def _repeat_image(image: np.ndarray, number: int) -> tf.Tensor:
    """Repeat an image for a batch, int32 [number, height, width, channels]."""
    return tf.constant(np.repeat(image[None].astype(np.int32), number, 0))


def _prefix_of(request: Request, number: int, channels: int) -> Prefix:
    """Return the pixels to keep; without `given`, a blank image and a count of 0."""
    image, count = request.given or (np.zeros([request.size, request.size, channels], np.int32), 0)
    return Prefix(_repeat_image(image, number), tf.constant(count))
