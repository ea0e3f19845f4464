"""A sampler with one step of the network per symbol and the past in a state."""

from typing import Any

import tensorflow as tf

from autoregressive.symbols import TimeOrder
from likelihoods.distribution import Distribution


def cached(
    network: TimeOrder,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: tf.Tensor | None = None,
    temperature: float | tf.Tensor = 1.0,
) -> tf.Tensor:
    """Return symbols [batch, time]; arguments as for `naive`."""
    state = network.initial_state(noise.shape[0])
    return cached_chunk(network, distribution, noise, condition, temperature, state)[0]


def cached_chunk(
    network: TimeOrder,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: tf.Tensor | None,
    temperature: float | tf.Tensor,
    state: Any,
) -> tuple[tf.Tensor, Any]:
    """Return the next symbols [batch, time] and the new state.

    Args:
      network: as for `naive`.
      distribution: as for `naive`.
      noise: of this chunk, as for `naive`.
      condition: of this chunk, as for `naive`.
      temperature: as for `naive`.
      state: from `network.initial_state`, or from the previous chunk.
    """
    batch, length = noise.shape[0], tf.shape(noise)[1]
    dtype = tf.float32 if distribution.levels is None else tf.int32
    symbols = tf.TensorArray(dtype, length, element_shape=[batch])

    def body(time, state, symbols):
        now = None if condition is None else condition[:, time][:, tf.newaxis]
        parameters, after = network.step(state, now)
        drawn = distribution.sample(parameters, noise[:, time][:, tf.newaxis], temperature)
        drawn = tf.cast(tf.reshape(drawn, [batch, 1]), dtype)
        state = {"input": network.read(drawn), "network": after}
        return time + 1, state, symbols.write(time, drawn[:, 0])

    _, state, symbols = tf.while_loop(
        lambda time, *_: time < length, body, (0, state, symbols), maximum_iterations=length
    )
    return tf.transpose(symbols.stack()), state
