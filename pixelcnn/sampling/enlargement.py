"""Enlargement of photographs of any shape, in tiles to bound memory.

A factor without coordinates is convolutional: a pixel depends on known pixels within a distance of
`Factor.reach`. A tile is therefore computed from a window that is larger by this distance. Pixel n
of the image in sampling order (by doubling, group and row) is drawn from the random words of
(seed, row, n), as in `multiscale_sampler`, so that the result does not depend on the tile size.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import UserError, require
from onepass.foundation.runtime import Compiled
from onepass.likelihoods import noise
from pixelcnn.config import GROUPS
from pixelcnn.density import Factor, Multiscale, sample_hidden
from pixelcnn.networks.layers import NONE, OFFSETS

TILE = 128  # side of a tile in pixels of a group, a multiple of the patch for type B


class Work(NamedTuple):
    """Passes of an enlargement, three per doubling, and the shallow PixelCNNs' steps in each."""

    passes: int
    steps: int
    tiles: int


class Enlarger:
    """A sampler that enlarges images of any shape in tiles of side `tile`, in pixels of a group."""

    def __init__(self, model: Multiscale, tile: int = TILE) -> None:
        if not model.any_shape:
            raise UserError("Only factors without coordinates enlarge images of any shape.")
        patch = model.config.factor.patch
        require(
            tile >= patch and not (tile % patch), "tile", f"a multiple of {patch}, the patch", tile
        )
        self.model, self.tile = model, tile
        self._programs = Compiled()

    def scales(
        self,
        image: np.ndarray,
        size: int,
        seed: tf.Tensor,
        row: int,
        temperatures: np.ndarray,
        advance: Callable[[], None] = lambda: None,
    ) -> Iterator[np.ndarray]:
        """Yield the image at every scale, int32 [height, width, channels], smallest first."""
        image = image.astype(np.int32)
        yield image
        while max(image.shape[:2]) < size:
            side = 2 * max(image.shape[:2])
            temperature = temperatures[self.model.sizes.index(side)]
            groups = [image]
            for _ in GROUPS:
                heat = tf.constant(temperature)
                groups.append(self._group(side, seed, row, heat, advance, groups))
            height, width, channels = image.shape
            image = np.empty([2 * height, 2 * width, channels], np.int32)
            for (down, across), group in zip(OFFSETS, groups, strict=True):
                image[down::2, across::2] = group
            yield image

    def work(self, shape: tuple[int, ...], size: int) -> Work:
        """Return the work of enlarging an image with a shape until its longer side is `size`."""
        config, (height, width) = self.model.config.factor, shape[:2]
        passes = tiles = 0
        while max(height, width) < size:
            passes += len(GROUPS)
            tiles += len(GROUPS) * len(list(_tiles(height, width, self.tile)))
            height, width = 2 * height, 2 * width
        return Work(passes, config.patch**2 if config.kind == "B" else 0, tiles)

    def _group(
        self,
        side: int,
        seed: tf.Tensor,
        row: int,
        temperature: tf.Tensor,
        advance: Callable[[], None],
        groups: list[np.ndarray],
    ) -> np.ndarray:
        part = f"{side}.{len(groups) + 1}"
        program, reach = self._program(part), self.model.factors[part].reach
        height, width = groups[0].shape[:2]
        drawn = np.empty_like(groups[0])
        for rows, columns in _tiles(height, width, self.tile):
            window = _around(rows, height, reach), _around(columns, width, reach)
            starts = (len(groups) * height + np.arange(rows.start, rows.stop)) * width
            read = [tf.constant(group[window][np.newaxis]) for group in groups]
            corner = tf.constant([rows.start - window[0].start, columns.start - window[1].start])
            first = tf.constant(starts + columns.start, tf.int32)
            count = tf.constant(columns.stop - columns.start)
            made = program(read, corner, first, count, seed, tf.constant(row), temperature)
            drawn[rows, columns] = made[0].numpy()
            advance()
        return drawn

    def _program(self, part: str) -> Callable:
        draw = functools.partial(_tile, self.model.factors[part], self.model.noise_words)
        return self._programs.function(part, draw, reduce_retracing=True)


def _tiles(height: int, width: int, side: int) -> Iterator[tuple[slice, slice]]:
    for top in range(0, height, side):
        for left in range(0, width, side):
            yield (slice(top, min(top + side, height)), slice(left, min(left + side, width)))


def _around(part: slice, length: int, reach: int) -> slice:
    return slice(max(0, part.start - reach), min(length, part.stop + reach))


def _tile(
    factor: Factor,
    noise_words: int,
    groups: Sequence[tf.Tensor],
    inside: tf.Tensor,
    starts: tf.Tensor,
    width: tf.Tensor,
    seed: tf.Tensor,
    row: tf.Tensor,
    temperature: tf.Tensor,
) -> tf.Tensor:
    """Draw the pixels of a tile, int32 [1, height, width, channels].

    The groups are known in the window around it, where it begins at `inside`; `starts` are the
    sampling indices of the first pixel in each of its rows.
    """
    (top, left), height = tf.unstack(inside), tf.size(starts)
    rows, columns = slice(top, top + height), slice(left, left + width)
    hidden = tf.nest.map_structure(lambda part: part[:, rows, columns], factor(groups, NONE))
    words = noise.words(seed, tf.fill([height], row), starts, width, noise_words)[tf.newaxis]
    if not factor.draws_at_once:  # pad to whole patches; no pixel depends on the padding
        beyond = [tf.math.floormod(-side, factor.config.patch) for side in (height, width)]
        sides = [[0, 0], [0, beyond[0]], [0, beyond[1]], [0, 0]]
        hidden = tf.nest.map_structure(lambda part: tf.pad(part, sides), hidden)
        words = tf.pad(words, sides)
    return sample_hidden(factor, hidden, words, temperature)[:, :height, :width]
