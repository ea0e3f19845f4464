"""Pictures from a density and a seed: compiled programs, one for each kind and size.

A program draws one picture at a time, so that no batch size can move the last bit of a sum and with
it a pixel: picture n of a seed is the same whatever else is drawn.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from likelihoods.noise import as_key
from pixelcnn.density import PictureDensity
from pixelcnn.drawing import Draw, draw, temperatures_of
from pixelcnn.multiscale import check_size
from pixelcnn.sampler import Given, picture_words, sample, sample_naively

# XLA's convolutions win on small pictures, TensorFlow's own on large ones.
LARGEST_COMPILED = 64


class Request(NamedTuple):
    """What to draw.

    num: how many pictures. seed: of the noise. size: side, in pixels. condition: what a batch of
    one says, as the density's conditioner takes it; every picture has the same. temperature: one
    number, or one a scale. given: uint8 [height, width, channels] and the number of its pixels, in
    raster order, to keep (PixelCNN). start: uint8 [side, side, channels], a small picture to begin
    with (multiscale).
    """

    num: int
    seed: int
    size: int
    condition: dict[str, np.ndarray]
    temperature: float | tuple[float, ...] = 1.0
    given: tuple[np.ndarray, int] | None = None
    start: np.ndarray | None = None


class Painter:
    """Draws with the weights that the density has when it is called."""

    def __init__(self, density: PictureDensity):
        self.density = density
        self._programs: dict[tuple, tf.types.experimental.PolymorphicFunction] = {}

    def pictures(self, request: Request, naive: bool = False) -> Iterator[list[np.ndarray]]:
        """For each picture its scales, uint8 [side, side, channels], smallest first.

        A PixelCNN has one scale. naive: a whole network pass for every pixel (PixelCNN).
        """
        for row in range(request.num):
            yield self._drawn(request, row, naive)

    def _drawn(self, request: Request, row: int, naive: bool) -> list[np.ndarray]:
        batch = {name: tf.constant(value) for name, value in request.condition.items()}
        seed, rows = as_key(request.seed), tf.constant([row])
        if self.density.pixelcnn is not None:
            program = self._program("naive" if naive else "cached", request.size, 0)
            given = _given(request, self.density.config.data.channels)
            temperature = tf.constant(request.temperature, tf.float32)
            drawn = [program(batch, seed, rows, given, temperature)]
        else:
            model = self.density.multiscale
            check_size(request.size, model.config.base_size)
            program = self._program("multiscale", request.size, _side(request.start))
            temperatures = temperatures_of(request.temperature, len(model.sizes))
            drawn = program(batch, seed, rows, _levels(request.start), temperatures)
        return [levels[0].numpy().astype(np.uint8) for levels in drawn]

    def _program(self, kind: str, size: int, start: int):
        key = (kind, size, start)
        if key not in self._programs:
            make = self._multiscale if kind == "multiscale" else self._pixelcnn
            self._programs[key] = make(kind, size)
        return self._programs[key]

    def _pixelcnn(self, kind: str, size: int):
        sampler = sample if kind == "cached" else sample_naively

        @tf.function(jit_compile=True, autograph=False)
        def program(batch, seed, rows, given, temperature):
            network = self.density.pixelcnn
            words = picture_words(network, seed, rows, size, size)
            condition = self.density.conditioner(batch)
            return sampler(network, words, condition, given, temperature)

        return program

    def _multiscale(self, kind: str, size: int):
        base = tf.function(sample, jit_compile=True, autograph=False)

        @tf.function(jit_compile=size <= LARGEST_COMPILED, autograph=False)
        def program(batch, seed, rows, start, temperatures):
            condition = self.density.conditioner(batch)
            wish = Draw(seed, rows, condition, temperatures)
            sampler = sample if size <= LARGEST_COMPILED else base
            return draw(self.density.multiscale, wish, size, start, sampler)

        return program


def _levels(picture: np.ndarray | None):
    return None if picture is None else tf.constant(picture[None].astype(np.int32))


def _side(picture: np.ndarray | None) -> int:
    return 0 if picture is None else picture.shape[0]


def _given(request: Request, channels: int) -> Given:
    """The pixels to keep: none of a blank picture where nothing is given."""
    if request.given is None:
        return Given(tf.zeros([1, request.size, request.size, channels], tf.int32), tf.constant(0))
    picture, count = request.given
    return Given(_levels(picture), tf.constant(count))
