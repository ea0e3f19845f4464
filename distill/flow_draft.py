"""A student as the draft of its teacher, for `method="speculative"`."""

from typing import Any, NamedTuple

import tensorflow as tf

from autoregressive.samplers.speculative import Block
from likelihoods.affine import FlowOutput, compose
from likelihoods.codec import Codec

FARTHEST = 20.0  # noise of a corrected symbol; the student meets none beyond


class Flowed(NamedTuple):
    """The noise of a block float32 [batch, n], and what the newest proposal made of it."""

    noise: tf.Tensor
    location: tf.Tensor
    log_scale: tf.Tensor


class FlowDraft:
    """Draws a block in one pass of the flows, from the last channel of the model's noise.

    Where the model has drawn another symbol than proposed, the flow is inverted there, z_t = (x_t -
    mu_t) / s_t, and the draft continues from there. See `autoregressive.samplers.Draft`.

    Args:
      networks: the flows with `initial_state` and `step`.
      codec: of the symbols.
      is_conditional: whether the flows read the condition.
    """

    def __init__(self, networks: list[Any], codec: Codec, is_conditional: bool):
        self._networks, self._codec, self._is_conditional = networks, codec, is_conditional

    def initial_state(self, batch: int) -> Any:
        """Return what every flow has read last, zeros, and its network's state."""
        none = tf.zeros([batch, 1])
        return [(none, network.initial_state(batch)) for network in self._networks]

    def memory(self, block: Block) -> Flowed:
        """Return the noise of a block, which no flow has read yet."""
        noise = block.temperature * tf.cast(block.noise[..., -1], tf.float32)
        return Flowed(noise, tf.zeros_like(noise), tf.zeros_like(noise))

    def propose(
        self, block: Block, symbols: tf.Tensor, known: tf.Tensor, memory: Flowed, state: Any
    ) -> tuple[tf.Tensor, Flowed, Any]:
        """Return the block, which continues the known symbols; see `Draft.propose`."""
        place, wave = tf.range(symbols.shape[1]), self._codec.scale(symbols)
        inverted = (wave - memory.location) * tf.exp(-memory.log_scale)
        inverted = tf.clip_by_value(inverted, -FARTHEST, FARTHEST)
        noise = tf.where(place == known[:, tf.newaxis] - 1, inverted, memory.noise)
        given = [block.condition] if self._is_conditional else []
        values, steps, after = noise, [], []
        for network, (newest, past) in zip(self._networks, state, strict=True):
            before = tf.concat([newest, values[:, :-1]], 1)[..., tf.newaxis]
            outputs, past = network.step(before, past, *given)
            location, log_scale = tf.unstack(tf.cast(outputs, tf.float32), axis=-1)
            after.append((values[:, -1:], past))
            values = values * tf.exp(log_scale) + location
            steps.append(FlowOutput(values, location, log_scale))
        whole = compose(steps)
        guess = tf.where(place < known[:, tf.newaxis], symbols, nearest(whole.output, self._codec))
        return guess, Flowed(noise, whole.location, whole.log_scale), after


def nearest(values: tf.Tensor, codec: Codec) -> tf.Tensor:
    """Return the symbols int32 [...] nearest to what networks read of them, about -1 to 1."""
    top = (codec.levels or 0) - 1
    levels = tf.clip_by_value(tf.round((values + 1.0) * (0.5 * top)), 0.0, float(top))
    return tf.cast(levels, tf.int32)
