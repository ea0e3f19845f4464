"""One factor of the multiscale model: the pixels of a group given the groups before it.

Reed et al. 2017 (arXiv 1703.03664), section 3 and figure 3. A ResNet reads the merged image of the
known groups, and either
- type A: gives the distribution of every pixel of the group directly, in one evaluation; or
- type B: gives features to a shallow PixelCNN, shared by all M x M patches of the group, within
  which pixels depend on each other: M^2 cheap steps for all patches at once.

The ResNet's first convolution has the merged image's stride, so that all later layers work on one
cell per tile, height x width of the group: the paper's network runs on the merged image itself, of
up to four times the size, and discards the other cells.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from likelihoods.initial import Initial
from likelihoods.levels import value_of
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.config import FactorConfig, OutputConfig
from pixelcnn.networks.groups import STRIDES, cut, merged
from pixelcnn.networks.layers import cast_like, convolved, matmul
from pixelcnn.networks.mode import EXACT, Mode
from pixelcnn.networks.outputs import Hidden, PixelOutputs, make_output
from pixelcnn.networks.pixelcnn import ConditionTerm, PixelCNN, gated, passing
from replicator.training.rematerialisation import recomputed

REACH = 1  # tiles to each side that the first convolution reads

# What the linear prediction starts as: (row, column, weight) of known pixels in the window of
# 3 x 3 tiles of the merged image. Group 2 lies between two pixels of group 1, group 3 under one
# and above another, group 4 in the middle of two of group 2 and two of group 3.
NEIGHBOURS = {
    2: ((1, 1, 0.5), (1, 2, 0.5)),
    3: ((1, 2, 0.5), (2, 2, 0.5)),
    4: ((2, 3, 0.25), (4, 3, 0.25), (3, 2, 0.25), (3, 4, 0.25)),
}


class Block(tf.Module):
    """A gated residual block: x + W gate(K * x + V c)."""

    def __init__(self, units: int, initial: Initial, vector: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self.kernel = initial.kernel([3, 3, units, 2 * units], "kernel")
        self.condition = ConditionTerm(2 * units, initial, vector, 0)
        self.out = initial.kernel([units, units], "out")

    def __call__(self, x: tf.Tensor, condition: Condition, drop: Callable) -> tf.Tensor:
        """Return the next x [batch, height, width, units]; `drop` is the dropout of the units."""
        return x + matmul(drop(self.gate(x, condition)), self.out)

    def gate(self, x: tf.Tensor, condition: Condition) -> tf.Tensor:
        """Return the gated units [batch, height, width, units]; reads only the vector."""
        padded = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
        term = self.condition(condition)
        return gated(convolved(padded, self.kernel) + tf.cast(term, x.dtype))


class Factor(tf.Module):
    """The density of group 2, 3 or 4 given the groups before it.

    Each group is int32 [batch, height, width, channels].
    """

    def __init__(
        self,
        group: int,
        config: FactorConfig,
        output: OutputConfig,
        initial: Initial,
        vector_channels: int,
        map_channels: int,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.group, self.config, self.output_config = group, config, output
        rows, columns = self.strides
        window, units = [(2 * REACH + 1) * rows, (2 * REACH + 1) * columns], config.units
        self.front = initial.kernel([*window, output.channels + 1, units], "front")
        self.map_front = self.map_prediction = None
        if map_channels:
            self.map_front = initial.kernel([6, 6, map_channels, units], "map_front")
        neighbours = passing([*window, output.channels + 1, output.channels], NEIGHBOURS[group])
        self.prediction = tf.Variable(neighbours, name="prediction")
        if map_channels:
            self.map_prediction = initial.zeros([map_channels, output.channels], "map_prediction")
        self.blocks = [
            Block(units, initial, vector_channels, f"block_{i:02d}") for i in range(config.blocks)
        ]
        self.out_kernel = initial.kernel([units, config.output_units], "out_kernel")
        self.out_bias = initial.zeros([config.output_units], "out_bias")
        self.output: Any = None
        self.shallow: Any = None
        if config.kind == "A":
            self.output = make_output(output, config.output_units, initial)
        else:
            self.shallow = PixelCNN(
                config.shallow, output, initial, 0, config.output_units, 0.0, "shallow"
            )

    @property
    def strides(self) -> tuple[int, int]:
        """Pixels of the merged image per tile, down and across."""
        return STRIDES[self.group - 2]

    @property
    def reach(self) -> int:
        """Tiles to each side that a pixel of the group depends on."""
        return REACH + self.config.blocks

    @property
    def draws_at_once(self) -> bool:
        """True if one pass draws all pixels of the group; else they are drawn one by one."""
        return self.output is not None

    @property
    def noise_words(self) -> int:
        """Random words per pixel."""
        return (self.output or self.shallow.output).noise_words

    def __call__(
        self, groups: Sequence[tf.Tensor], condition: Condition, mode: Mode = EXACT
    ) -> Hidden:
        """Return the ResNet's hidden state at each pixel of a group, [batch, height, width, ...].

        The groups before it are levels int32 [batch, height, width, channels] each; the condition's
        map has the size of the whole image, [batch or 1, 2 height, 2 width, map_channels], or is
        None if it has no channels.
        """
        image = self._merged(groups)
        rows, columns = self.strides
        window = [[0, 0], [rows, rows], [columns, columns], [0, 0]]
        padded = tf.pad(image, window)
        x = convolved(tf.cast(padded, mode.dtype), self.front, self.strides)
        if self.map_front is not None:
            map_ = tf.cast(tf.pad(condition.map, [[0, 0], [2, 2], [2, 2], [0, 0]]), mode.dtype)
            x += convolved(map_, self.map_front, 2)
        vector = Condition(condition.vector, None)
        for i, block in enumerate(self.blocks):
            drop = functools.partial(mode.dropout, rate=self.config.dropout, place=i)
            x = recomputed(functools.partial(block, drop=drop), x, vector)
        x = tf.nn.relu(matmul(tf.nn.relu(x), self.out_kernel) + cast_like(self.out_bias, x))
        prediction = convolved(mode.for_prediction(padded), self.prediction, self.strides)
        if self.map_prediction is not None:
            own = condition.map[:, (self.group - 1) // 2 :: 2, (self.group - 1) % 2 :: 2]
            prediction += matmul(mode.for_prediction(own), self.map_prediction)
        return Hidden(x, prediction)

    def log_prob(
        self, levels: tf.Tensor, groups: list, condition: Condition, mode: Mode = EXACT
    ) -> tf.Tensor:
        """Return the log-probability of a group, float32 [batch], nats.

        `levels` are the group's own; `groups` and `condition` are the arguments of a call.
        """
        return self.conditionals(levels, groups, condition, mode).nats()

    def conditionals(
        self, levels: tf.Tensor, groups: list, condition: Condition, mode: Mode = EXACT
    ) -> PixelOutputs:
        """Return the distribution of every pixel of a group, whose levels are given."""
        hidden = self(groups, condition, mode)
        if self.output is not None:
            return PixelOutputs(self.output, hidden, levels)
        patches = cut(levels, self.config.patch)
        known = self.patch_hidden(hidden)
        units, prediction = self.shallow(patches, Condition(None, known.units), mode)
        hidden = Hidden(units, prediction + known.prediction)
        return PixelOutputs(self.shallow.output, hidden, patches, tf.shape(levels)[0])

    def patch_hidden(self, hidden: Hidden) -> Hidden:
        """Return the hidden state cut into patches, [batch * patches, M, M, ...] (type B)."""
        units = cut(tf.cast(hidden.units, tf.float32), self.config.patch)
        return Hidden(units, cut(hidden.prediction, self.config.patch))

    def _merged(self, groups: Sequence[tf.Tensor]) -> tf.Tensor:
        values = [value_of(group, self.output_config.levels) for group in groups]
        # The channel of ones distinguishes known pixels from padding and groups not drawn yet.
        return merged([tf.concat([v, tf.ones_like(v[..., :1])], -1) for v in values])
