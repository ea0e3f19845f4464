"""The cached sampler: one step of the network per symbol, in chunks that pass on a state."""

from typing import Any

import tensorflow as tf

from onepass.likelihoods.distribution import Distribution
from onepass.likelihoods.truncated import counts_after, first_counts, with_counts
from onepass.networks.conditions import NOTHING, Condition, first_state, over_time
from onepass.networks.symbols import Prompt, SteppedSymbols
from onepass.samplers.registry import method

SHORTEST = 64  # shortest chunk, so that short sequences share a program


def chunk_length(wanted: int, count: int, block: int, longest: int | None = None) -> int:
    """Return the number of symbols per chunk, a multiple of `block`, small for short sequences."""
    length = min(wanted, longest or wanted, max(SHORTEST, 1 << (count - 1).bit_length()))
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
    return _rows_first(symbols.stack())[:, :length], state


def _rows_first(values: tf.Tensor) -> tf.Tensor:
    return tf.transpose(values, [1, 0, *range(2, values.shape.rank)])


def _in_blocks(values: tf.Tensor, block: int) -> tf.Tensor:
    if block == 1:
        return values
    short = -tf.shape(values)[1] % block if values.shape[1] is None else -values.shape[1] % block
    return tf.pad(values, [[0, 0], [0, short], *[[0, 0]] * (values.shape.rank - 2)])
