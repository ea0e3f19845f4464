"""A sampler with one step of the network per symbol and the past in a state."""

from typing import Any

import tensorflow as tf

from autoregressive.symbols import SteppedSymbols
from likelihoods.distribution import Distribution


def cached(
    network: SteppedSymbols,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: tf.Tensor | None = None,
    temperature: float | tf.Tensor = 1.0,
) -> tf.Tensor:
    """Return symbols [batch, time]; arguments as for `naive`."""
    state = network.initial_state(noise.shape[0])
    return cached_chunk(network, distribution, noise, condition, temperature, state)[0]


def cached_chunk(
    network: SteppedSymbols,
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
      state: from `network.initial_state`, or from the previous chunk, whose length must have been a
        multiple of the network's block.
    """
    batch, length, block = noise.shape[0], tf.shape(noise)[1], network.block
    noise, condition = (x if x is None else _in_blocks(x, block) for x in (noise, condition))
    blocks = tf.shape(noise)[1] // block
    dtype = tf.float32 if distribution.levels is None else tf.int32
    symbols = tf.TensorArray(dtype, tf.shape(noise)[1], element_shape=[batch])
    step = network.stepper(condition)

    def body(number, state, symbols):
        for remainder in range(block):
            time = number * block + remainder
            parameters, after = step(time, remainder, state)
            drawn = distribution.sample(parameters, noise[:, time][:, tf.newaxis], temperature)
            drawn = tf.cast(tf.reshape(drawn, [batch, 1]), dtype)
            state = {"input": network.read(drawn), "network": after}
            symbols = symbols.write(time, drawn[:, 0])
        return number + 1, state, symbols

    _, state, symbols = tf.while_loop(
        lambda number, *_: number < blocks, body, (0, state, symbols), maximum_iterations=blocks
    )
    return tf.transpose(symbols.stack())[:, :length], state


def steps(
    functions: dict, network: SteppedSymbols, distribution: Distribution, batch: int, compiled: Any
) -> tuple[Any, Any]:
    """Return the fastest function of a chunk, as `cached_chunk`, and the state before the first.

    Args:
      functions: of one model, by name; keeps its sampler on the step machine.
      network: as for `naive`.
      distribution: as for `naive`.
      batch: number of rows.
      compiled: `cached_chunk` of the network and the distribution, compiled by XLA.
    """
    from autoregressive.samplers.native import native  # which imports a compiler

    if "native" not in functions:
        functions["native"] = native(network, distribution)
    found = functions["native"]
    if found is not None and found.pays(batch):
        return found.advance, found.begin(batch)
    return compiled, network.initial_state(batch)


def _in_blocks(values: tf.Tensor, block: int) -> tf.Tensor:
    """Return values [batch, time, ...] padded with zeros to a multiple of the block."""
    if block == 1:
        return values
    short = -tf.shape(values)[1] % block if values.shape[1] is None else -values.shape[1] % block
    return tf.pad(values, [[0, 0], [0, short], *[[0, 0]] * (values.shape.rank - 2)])
