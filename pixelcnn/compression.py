"""A lossless code for images by a density's exact conditionals, decoded in few passes.

A PixelCNN is decoded with the caches of its cached sampler, pixel by pixel. Of a multiscale model
only the base is, and each doubling then takes three network passes: O(log N) per image. All images
of a batch are decoded together.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from compression.stream import Decoder, Encoder, Layout, depth_of, odds_of
from compression.verification import Moved
from pixelcnn.density import ImageDensity
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.config import GROUPS
from pixelcnn.networks.groups import merge, paste
from pixelcnn.networks.mode import Mode
from pixelcnn.networks.multiscale import Multiscale, condition_at
from pixelcnn.networks.outputs import Hidden, Output
from pixelcnn.networks.pixelcnn import PixelCNN, with_coordinates
from pixelcnn.pixel_distributions import pixels_of
from pixelcnn.stepping import SteppedPixelCNN

MODE = Mode(linear=tf.float64)


class _Part(NamedTuple):
    """The pixels of one part, one call of the decoder after another, with their hidden states."""

    output: Output
    hidden: Hidden
    levels: np.ndarray
    calls: int


class ImageCodec:
    """An encoder and decoder of batches of images, with the weights of the density at the call.

    Attributes:
      passes: network passes, and pixels that were stepped through, of the newest decoding.
    """

    def __init__(self, density: ImageDensity):
        self.density = density
        self.channels = density.config.output.channels
        self.depth = depth_of(density.config.output.levels)
        self.passes = self.steps = 0
        self._moved: Moved | None = None
        self._mapped = density.conditioner.map_channels > 0
        self._conditionals = tf.function(self._hidden, autograph=False, reduce_retracing=True)
        self._condition = tf.function(density.conditioner, autograph=False, reduce_retracing=True)
        self._factors: dict[str, tf.types.experimental.GenericFunction] = {}
        self._stepped: dict[tuple[str, int], SteppedPixelCNN] = {}

    def encode(self, levels: np.ndarray, batch: dict, tolerance: float) -> bytes:
        """Return the stream of images int32 [batch, size, size, channels] and their conditions.

        `tolerance` is relative, of the network's outputs on another processor.
        """
        encoder = Encoder(self._layout(levels.shape))
        parts = self._conditionals({"levels": tf.constant(levels), **batch})
        for name, (hidden, own) in parts.items():
            part = self._ordered(name, hidden, own.numpy())
            pixels = pixels_of(part.output, part.hidden, tolerance, self._mapped)
            odds, before = [], None
            for channel in range(self.channels):
                distribution = pixels.next_channel(before)
                before = part.levels[:, channel].astype(np.int64)
                odds.append(odds_of(distribution, before, self.depth))
            encoder.add(odds, self._class(name), part.calls)
        return encoder.finish()

    def decode(
        self, stream: bytes, shape: tuple[int, ...], batch: dict, moved: Moved | None = None
    ) -> np.ndarray:
        """Return images int32 of a shape [batch, size, size, channels] from their stream.

        `moved`, if given, changes the last layer's outputs.
        """
        self._moved = moved
        decoder = Decoder(stream, self._layout(shape))
        self.passes = self.steps = 0
        condition = self._condition(batch)
        if self.density.multiscale is not None:
            return self._scales(decoder, self.density.multiscale, condition, shape[0])
        name, size = str(shape[1]), shape[1]
        return self._scan(decoder, name, self._network(name), condition, shape[0], size)

    def _hidden(self, batch: dict) -> dict:
        """Return the hidden states and levels of all pixels, part by part."""
        condition = self.density.conditioner(batch)
        parts = self.density.conditionals(batch["levels"], condition, MODE)
        return {name: (part.hidden, part.levels) for name, part in parts.items()}

    def _ordered(self, name: str, hidden: Hidden, levels: np.ndarray) -> _Part:
        """Return the pixels [rows, height, width, ...] of a part in the order of decoding."""
        direct = self._network(name).draws_at_once
        order = (0, 1, 2, 3) if direct else (1, 2, 0, 3)
        flat = [
            np.asarray(array).transpose(order).reshape(-1, array.shape[-1])
            for array in (*hidden, levels)
        ]
        calls = 1 if direct else levels.shape[1] * levels.shape[2]
        return _Part(self._output(name), Hidden(*flat[:2]), flat[2], calls)

    def _scales(self, decoder, model: Multiscale, condition: Condition, batch: int) -> np.ndarray:
        base = model.sizes[0]
        at_base = condition_at(condition, base)
        image = self._scan(decoder, str(base), model.base, at_base, batch, base)
        for side in model.sizes[1:]:
            groups = [image]
            placed = with_coordinates(condition_at(condition, side), side, side)
            for group in GROUPS:
                groups.append(self._group(decoder, f"{side}.{group}", groups, placed))
            image = merge([tf.constant(each) for each in groups]).numpy()
        return image

    def _group(self, decoder, name: str, groups: list, placed: Condition) -> np.ndarray:
        """Return the pixels of a group given the groups before it, int32 like the first group."""
        factor, shape = self._network(name), groups[0].shape
        if name not in self._factors:
            program = tf.function(factor, autograph=False, reduce_retracing=True)
            self._factors[name] = program
        hidden = self._factors[name]([tf.constant(each) for each in groups], placed, MODE)
        self.passes += 1
        if factor.output is not None:
            flat = Hidden(*(np.asarray(each).reshape(-1, each.shape[-1]) for each in hidden))
            return self._levels(decoder, name, flat).reshape(shape)
        known, patch = factor.patch_hidden(hidden), factor.config.patch
        rows = known.units.shape[0]
        inner, more = Condition(None, known.units), known.prediction
        patches = self._scan(decoder, name, factor.shallow, inner, rows, patch, more)
        return paste(tf.constant(patches), tf.constant(shape)).numpy()

    def _scan(
        self, decoder, name: str, network: PixelCNN, condition, batch: int, size: int, more=None
    ) -> np.ndarray:
        """Return images [batch, size, size, channels] of a part, decoded pixel by pixel.

        `more` is added to the linear prediction.
        """
        if (name, size) not in self._stepped:
            self._stepped[name, size] = SteppedPixelCNN(network, size, MODE)
        self.steps += size**2

        def read(hidden: Hidden) -> np.ndarray:
            return self._levels(decoder, name, hidden)

        return self._stepped[name, size].read(condition, batch, size, read, more)

    def _levels(self, decoder: Decoder, name: str, hidden: Hidden) -> np.ndarray:
        """Return the levels int32 [pixels, channels] of pixels with these hidden states."""
        hidden = Hidden(*(np.asarray(each) for each in hidden))
        pixels = pixels_of(self._output(name), hidden, None, self._mapped, self._moved)
        channels, before = [], None
        for channel in range(self.channels):
            distribution = pixels.next_channel(before)
            before = decoder.levels(distribution, len(hidden.units), self._class(name), channel)
            channels.append(before)
        return np.stack(channels, -1).astype(np.int32)

    def _layout(self, shape: tuple[int, ...]) -> Layout:
        scales = 1 if self.density.multiscale is None else len(self.density.multiscale.sizes)
        levels = self.density.config.output.levels
        return Layout(self.depth, self.channels, scales, int(np.prod(shape[:3])), levels)

    def _class(self, name: str) -> int:
        """Return the class of the pixels of a part: each scale has its own."""
        model = self.density.multiscale
        return 0 if model is None else model.sizes.index(int(name.split(".")[0]))

    def _network(self, name: str) -> Any:
        """Return the PixelCNN or the factor of a part."""
        model = self.density.multiscale
        if model is None:
            return self.density.pixelcnn
        return model.factors.get(name, model.base)

    def _output(self, name: str) -> Output:
        network = self._network(name)
        return network.output or network.shallow.output
