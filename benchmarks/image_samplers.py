"""Programs that draw images, timed: naive (the reference), cached, multiscale.

The small presets' networks, colour images, one class, one image at a time. Weights are random:
the work does not depend on them. A program too slow to finish is stopped after some passes of its
loop; all passes are alike, so an image is said to take as many times longer as it has more.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.interface import Draw
from onepass.likelihoods.noise import as_key
from pixelcnn.config import PRESETS
from pixelcnn.density import ImageDensity, image_words
from pixelcnn.model import LARGEST_COMPILED, ImageSampler, sampler_of

CLASSES, LABEL, SEED = 10, 3, 0
PIXELCNN, TRAINED_SIZE = "pixelcnn-cpu-32", 32
MULTISCALE = {"multiscale-A": "multiscale-cpu-64", "multiscale-B": "multiscale-patches-64"}
PART_PIXELS = 2**16  # pixels that all passes of a part work on; a whole image of 16 x 16
LEAST_SECONDS = 0.3  # that a measurement takes, by repeating what is shorter
Call = Callable[[], object]


class Timed:
    """One program, or the fastest of several that do the same.

    calls: by engine ("XLA", "graph"), each an image or a part of one. share: of an image.
    """

    def __init__(self, calls: dict[str, Call], share: float = 1.0):
        self.calls, self.share = calls, share
        self.engine = ""

    def measure(self) -> float:
        """Return the seconds per image; the first call compiles and chooses the engine."""
        if not self.engine:
            for call in self.calls.values():
                call()
            self.engine = min(self.calls, key=lambda engine: _seconds_of(self.calls[engine]))
        calls, start, elapsed = 0, time.perf_counter(), 0.0
        while not calls or elapsed < LEAST_SECONDS:
            self.calls[self.engine]()
            calls, elapsed = calls + 1, time.perf_counter() - start
        return elapsed / calls / self.share


def _seconds_of(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def passes_timed(size: int) -> int:
    """Passes of a naive loop that are run for an image of size x size pixels."""
    return min(size**2, max(1, PART_PIXELS // size**2))


def configuration(preset: str, size: int) -> Any:
    """The preset's training configuration for a size and for `CLASSES` classes."""
    config = PRESETS[preset].config
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, size=size),
        conditioning=dataclasses.replace(config.conditioning, classes=CLASSES),
    )


@functools.cache
def _sampler_of(config) -> ImageSampler:
    return ImageSampler(ImageDensity(config))


def pixelcnn() -> ImageDensity:
    """The PixelCNN that both of its samplers draw from, at any size."""
    return _sampler_of(configuration(PIXELCNN, TRAINED_SIZE)).density


def cached(size: int) -> Timed:
    """Whole images by the cached sampler of the PixelCNN."""
    return Timed({"XLA": _painting(configuration(PIXELCNN, TRAINED_SIZE), size)})


def multiscale(name: str, size: int, largest: int) -> Timed:
    """Whole images by a multiscale model that can draw up to `largest` x `largest` pixels."""
    engine = "XLA" if size <= LARGEST_COMPILED else "graph"
    return Timed({engine: _painting(configuration(MULTISCALE[name], largest), size)})


def _painting(config, size: int) -> Call:
    """An image as users get it."""
    sampler = _sampler_of(config)
    request = Draw(1, size, SEED, {"label": np.array([LABEL], np.int32)})
    return lambda: list(sampler.images(request))


def naive(size: int) -> Timed:
    """`passes_timed` of the passes of the naive sampler of the PixelCNN, by the faster engine."""
    passes = passes_timed(size)
    calls = by_engine(lambda xla: naive_part(pixelcnn(), size, passes, xla), size)
    return Timed(calls, passes / size**2)


def by_engine(make: Callable[[bool], Call], size: int) -> dict[str, Call]:
    """Calls made for XLA and for TensorFlow's graph; beyond a size for the graph alone."""
    # XLA's convolutions lose more, the larger the image.
    engines = {"graph": False} | ({"XLA": True} if size <= LARGEST_COMPILED else {})
    return {engine: make(xla) for engine, xla in engines.items()}


def naive_part(
    density: ImageDensity, size: int, passes: int, xla: bool
) -> Callable[[], np.ndarray]:
    """Draw as many pixels as passes, by the naive sampler: int32 [1, size, size, channels]."""

    @tf.function(jit_compile=xla, autograph=False)
    def program(label, seed, rows):
        network: Any = density.pixelcnn
        words = image_words(network, seed, rows, size, size)
        return sampler_of("naive")(network, words, density.conditioner({"label": label}))

    def call():
        with stopped(tf, passes):
            return program(tf.constant([LABEL]), as_key(SEED), tf.constant([0])).numpy()

    return call


@contextlib.contextmanager
def stopped(tensorflow: Any, loops: int):
    """A context where the first loop that is traced ends after `loops` iterations.

    tensorflow: the module whose `while_loop` the traced code calls.
    """
    whole = tensorflow.while_loop

    def short(cond, body, loop_vars, **options):
        tensorflow.while_loop = whole
        return whole(cond, body, loop_vars, **options | {"maximum_iterations": loops})

    tensorflow.while_loop = short
    try:
        yield
    finally:
        tensorflow.while_loop = whole


def weights_and_work(density: ImageDensity) -> tuple[int, float]:
    """Weights of a PixelCNN, and MFLOP a pixel in the products of one pass.

    Every kernel meets every pixel once, but for those of the condition's vector.
    """
    weights = sum(int(np.prod(w.shape)) for w in density.trainable_variables)
    network: Any = density.pixelcnn
    kernels = [
        w
        for w in network.trainable_variables
        if len(w.shape) > 1 and not w.name.startswith("vector_kernel")
    ]
    return weights, 2e-6 * sum(int(np.prod(w.shape)) for w in kernels)
