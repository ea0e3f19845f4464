"""The samplers that draw one symbol after another: by a step each, or by a full pass each.

`cached` takes one step of the network per symbol, in chunks that pass on a state. `naive`, a slow
reference, takes a full pass over the sequence per position.
"""

from typing import Any

import tensorflow as tf

from onepass.likelihoods.distribution import Distribution
from onepass.likelihoods.truncated import counts_after, first_counts, with_counts
from onepass.networks.conditions import NOTHING, Condition, first_state, over_time
from onepass.networks.symbols import Prompt, SteppedSymbols, SymbolNetwork
from onepass.samplers.fixed_point import empty_symbols
from onepass.samplers.registry import method

SHORTEST = 64  # shortest chunk, so that short sequences share a program


def chunk_length(wanted: int, count: int, block: int) -> int:
    """Return the number of symbols per chunk, a multiple of `block`, small for short sequences."""
    length = min(wanted, max(SHORTEST, 1 << (count - 1).bit_length()))
    return -(-length // block) * block


@method("cached")
def sample_cached(
    network: SteppedSymbols,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: Condition = NOTHING,
    temperature: float | tf.Tensor = 1.0,
    prompt: Prompt | None = None,
) -> tf.Tensor:
    """Draw the same symbols [batch, time, ...] as `naive`, with one network step for each."""
    state = first_state(network, noise.shape[0], noise.shape[1], condition)
    state = with_memory(state, temperature, noise.shape[2:-1], distribution.levels)
    return cached_chunk(network, distribution, noise, condition, temperature, state, prompt)[0]


def with_memory(state: Any, temperature: Any, event: Any, levels: int | None) -> Any:
    """Return a first state with the counts of symbols, if the draw depends on them."""
    counts = first_counts(temperature, [state["input"].shape[0], *event], levels)
    return state if counts is None else {**state, "counts": counts}


def cached_chunk(
    network: SteppedSymbols,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: Condition,
    temperature: float | tf.Tensor,
    state: Any,
    prompt: Prompt | None = None,
    count: tf.Tensor | None = None,
) -> tuple[tf.Tensor, Any]:
    """Draw the next symbols [batch, time, ...]; return them and the new state.

    It ends early, leaving later symbols undefined, once every row has ended or after `count`. The
    state is that of `network.initial_state` and `with_memory`, or of the previous chunk, whose
    length must have been a multiple of `network.block`.
    """
    batch, length, block = noise.shape[0], tf.shape(noise)[1], network.block
    noise = _in_blocks(noise, block)
    condition = over_time(lambda x: _in_blocks(x, block), condition)
    blocks = tf.shape(noise)[1] // block if count is None else (count + block - 1) // block
    dtype = tf.float32 if distribution.levels is None else tf.int32
    event = noise.shape[2:-1]  # shape of the symbols of one time step
    symbols = tf.TensorArray(dtype, tf.shape(noise)[1], element_shape=[batch, *event])
    step = network.stepper(condition)

    def body(
        number: tf.Tensor, state: Any, symbols: tf.Tensor, ended: tf.Tensor
    ) -> tuple[Any, ...]:
        for remainder in range(block):
            time = number * block + remainder
            parameters, after = step(time, remainder, state)
            heat = with_counts(temperature, state.get("counts"))
            drawn = distribution.sample(parameters, noise[:, time][:, tf.newaxis], heat)
            drawn = tf.cast(tf.reshape(drawn, [batch, 1, *event]), dtype)
            if prompt is not None:
                drawn = prompt.over(drawn, time)
                ended |= prompt.ends(drawn, time)[:, 0]
            memory = {n: counts_after(x, drawn) for n, x in state.items() if n == "counts"}
            state = {"input": network.read(drawn), "network": after, **memory}
            symbols = symbols.write(time, drawn[:, 0])
        return number + 1, state, symbols, ended

    def goes_on(number: tf.Tensor, state: Any, symbols: tf.Tensor, ended: tf.Tensor) -> tf.Tensor:
        return (number < blocks) if prompt is None else (number < blocks) & ~tf.reduce_all(ended)

    first = (0, state, symbols, tf.zeros([batch], tf.bool))
    _, state, symbols, _ = tf.while_loop(goes_on, body, first)
    stacked = symbols.stack()
    return tf.transpose(stacked, [1, 0, *range(2, stacked.shape.rank)])[:, :length], state


def _in_blocks(values: tf.Tensor, block: int) -> tf.Tensor:
    if block == 1:
        return values
    short = -tf.shape(values)[1] % block if values.shape[1] is None else -values.shape[1] % block
    return tf.pad(values, [[0, 0], [0, short], *[[0, 0]] * (values.shape.rank - 2)])


@method("naive")
def naive(
    network: SymbolNetwork,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: Condition = NOTHING,
    temperature: float | tf.Tensor = 1.0,
    prompt: Prompt | None = None,
) -> tf.Tensor:
    """Draw symbols [batch, time, ...] or [batch, height, width, channels], a pass per position.

    Args:
      network: a network of symbols. If it has a `reach`, the number of earlier symbols on which an
        output depends, each pass evaluates it only on these, in whole blocks.
      noise: the noise of all positions, [batch, time, ..., noise channels], or [batch, height,
        width, ..., noise channels] for images; with a channel axis if each channel has a separate
        symbol.
    """
    first = empty_symbols(distribution, noise)
    order, axes = network.positions(first), 2 if first.shape.rank == 4 else 1
    sizes = tf.shape(noise) if None in noise.shape else noise.shape

    def entry(values: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return the entry at a position, [batch, 1, ...], or [batch, 1, 1, ...] for images."""
        rest = values.shape[1 + axes :]
        flat = tf.reshape(values, [sizes[0], -1, *rest])
        return tf.reshape(flat[:, position], [sizes[0], *[1] * axes, *rest])

    reach, block = getattr(network, "reach", None), getattr(network, "block", 1)

    def parameters_at(position: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        if reach is None or noise.shape[1] is None or reach + block >= noise.shape[1]:
            return entry(network.parameters(symbols, condition), position)
        # The window starts with the sequence, or as far back as the network reads, in whole blocks,
        # so that a convolution pads with zeros only where it would in the full sequence.
        first = tf.maximum(0, position - reach)
        first -= first % block
        places = tf.minimum(first + tf.range(reach + block), noise.shape[1] - 1)
        part = over_time(lambda x: tf.gather(x, places, axis=1), condition)
        parameters = network.parameters(tf.gather(symbols, places, axis=1), part)
        return entry(parameters, position - first)

    def body(position: tf.Tensor, symbols: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parameters = parameters_at(position, symbols)
        heat = temperature
        counts = first_counts(temperature, [sizes[0], *first.shape[2:]], distribution.levels)
        if counts is not None:
            is_before = tf.reshape(
                tf.range(sizes[1]) < position, [-1, *[1] * (first.shape.rank - 2)]
            )
            heat = with_counts(temperature, counts_after(counts, tf.where(is_before, symbols, -1)))
        drawn = distribution.sample(parameters, entry(noise, position), heat)
        symbols = tf.where(order == position, tf.cast(drawn, symbols.dtype), symbols)
        return position + 1, symbols if prompt is None else prompt.over(symbols, 0)

    count = sizes[1] if axes == 1 else sizes[1] * sizes[2]
    begin = 0 if prompt is None else tf.reduce_min(prompt.known)
    symbols = first if prompt is None else prompt.over(first, 0)
    return tf.while_loop(lambda position, _: position < count, body, (begin, symbols))[1]
