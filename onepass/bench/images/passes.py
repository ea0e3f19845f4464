"""Network passes that the multiscale model makes for an image, counted while it draws."""

import contextlib
import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from likelihoods.initial import Initial
from likelihoods.noise import as_key
from onepass.bench.images.programs import MULTISCALE, SEED, configuration
from pixelcnn.networks.conditioning import NONE
from pixelcnn.networks.config import MultiscaleConfig
from pixelcnn.networks.factor import Factor
from pixelcnn.networks.multiscale import Multiscale
from pixelcnn.networks.pixelcnn import PixelCNN
from pixelcnn.sampling.multiscale_sampler import (
    SamplingInputs,
    multiscale_words,
    sample_scales,
    temperatures_of,
)


def count_passes(name: str, largest: int) -> dict[int, tuple[int, int]]:
    """Network passes, and steps of shallow PixelCNNs (type B), of an image of every size.

    Counted while an image of `largest` x `largest` pixels is drawn, which goes through all the
    smaller ones; few and narrow layers stand for the model's. In the base a pixel is a pass.
    """
    config = configuration(MULTISCALE[name], largest)
    model = Multiscale(_narrow(config.network), largest, config.output, _Blank(0))
    words = multiscale_words(model, as_key(SEED), tf.constant([0]), largest)
    inputs = SamplingInputs(words, NONE, temperatures_of(1.0, len(model.sizes)))
    with _calls_of(PixelCNN, "left") as pixels, _calls_of(Factor, "__call__") as factors:
        sample_scales(model, inputs, largest)  # not compiled: every turn of its loops is a call
    counts = {}
    for size in model.sizes:
        own = [f for part, f in model.factors.items() if int(part.split(".")[0]) <= size]
        shallow = [factor.shallow for factor in own]
        passes = _count(pixels, [model.base]) + _count(factors, own)
        counts[size] = (passes, _count(pixels, shallow))
    return counts


def _count(called: list, wanted: list) -> int:
    return sum(any(one is other for other in wanted) for one in called)


class _Blank(Initial):
    """Zeros for every weight, which take no time to draw."""

    def kernel(self, shape, name: str, gain: float = 1.0) -> tf.Variable:
        return self.zeros(shape, name)


def _narrow(config: MultiscaleConfig) -> MultiscaleConfig:
    factor = dataclasses.replace(
        config.factor, blocks=1, units=2, output_units=2, shallow_layers=1, shallow_units=2
    )
    base = dataclasses.replace(config.base, layers=1, units=2, output_units=2)
    return dataclasses.replace(config, base=base, factor=factor)


@contextlib.contextmanager
def _calls_of(kind: type, method: str) -> Iterator[list]:
    """A context that yields the list of the objects whose method is called in it."""
    called: list = []
    whole = getattr(kind, method)

    def counted(self, *given, **named):
        called.append(self)
        return whole(self, *given, **named)

    setattr(kind, method, counted)
    try:
        yield called
    finally:
        setattr(kind, method, whole)
