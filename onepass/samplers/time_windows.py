"""Fixed-point sampling in time order by passes over windows instead of the whole sequence.

Given its noise, a sequence is a fixed point: symbol t is f_t(symbols before t), and one pass of the
network computes f for a whole window of guesses. Repeated passes converge to the symbols of the
other samplers, in at most as many passes as there are symbols: Song et al. 2021 (arXiv 2002.03629),
Wiggers and Hoogeboom 2020 (2002.09928).

The stopping rule is exact. After every pass, the symbols up to and including the first that it
changed are final; the next window starts after them, separately in each row of a batch.
"""

from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from onepass.likelihoods.distribution import Distribution

WINDOW = 64


class WindowPasses(Protocol):
    """Passes of a network over a block, given a state that represents what came before it."""

    network: Any
    bunch: int  # number of symbols that the network generates together; 1 for most networks

    def initial_state(self, batch: int, length: int = 0, condition: Any = None) -> Any:
        """Return the state before the first of `length` symbols."""

    def __call__(self, state: Any, symbols: tf.Tensor, condition: Any, /) -> tuple[tf.Tensor, Any]:
        """Return the parameters of symbols int32 [batch, n], and a record of them for `after`."""

    def after(self, read: Any, symbols: tf.Tensor, count: tf.Tensor | None = None, /) -> Any:
        """Return the state after a block, or after its first `count` [batch] symbols.

        Args:
          read: the record that the pass over the block returned.
          count: number of the block's first symbols, int32 [batch]; None: all.
        """


class Settling(NamedTuple):
    """The values that one pass hands to the next."""

    first: tf.Tensor  # position at which each row's window begins, int32 [batch]
    settled: tf.Tensor  # number of the window's first symbols that are final, int32 [batch]
    guess: tf.Tensor
    symbols: tf.Tensor  # the symbols of the whole sequence, int32 [batch, time + window]
    state: Any
    count: tf.Tensor


def window_of(values: tf.Tensor, first: tf.Tensor, length: int) -> tf.Tensor:
    """Return `length` entries of each row of [batch, time, ...], starting at `first` [batch]."""
    return tf.gather(values, first[:, tf.newaxis] + tf.range(length), batch_dims=1)


def by_time_windows(
    passes: WindowPasses,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: tf.Tensor | None,
    temperature: tf.Tensor,
    state: Any,
    window: int = WINDOW,
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    """Draw symbols int32 [batch, time], whole bunches; return them, the passes and a state."""
    (batch, time), bunch = noise.shape[:2], passes.bunch
    window = -(-window // bunch) * bunch
    # A window may extend beyond the end; symbols drawn there never become final.
    beyond = [[0, 0], [0, window], [0, 0]]
    noise = tf.pad(noise, beyond)
    condition = None if condition is None else tf.pad(condition, beyond)
    place = tf.range(window)
    row = tf.range(batch)[:, tf.newaxis] + tf.zeros([1, window], tf.int32)

    def one_pass(now: Settling) -> tuple[Settling]:
        here = None if condition is None else window_of(condition, now.first, window)
        parameters, read = passes(now.state, now.guess, here)
        noises = window_of(noise, now.first, window)
        fresh = distribution.sample(parameters, noises, temperature)
        fresh = tf.where(place < now.settled[:, tf.newaxis], now.guess, fresh)
        final = tf.reduce_min(tf.where(fresh != now.guess, place + 1, window), 1)
        final = tf.minimum(final, time - now.first)
        whole = final // bunch * bunch
        at = tf.stack([row, now.first[:, tf.newaxis] + place], -1)
        # The last symbol is the first guess for the symbols that the window moves on to.
        longer = tf.concat([fresh, tf.repeat(fresh[:, -1:], window, 1)], 1)
        after = Settling(
            now.first + whole,
            final - whole,
            window_of(longer, whole, window),
            tf.tensor_scatter_nd_update(now.symbols, at, fresh),
            passes.after(read, fresh, whole),
            now.count + 1,
        )
        return (after,)

    none = tf.zeros([batch], tf.int32)
    middle = tf.fill([batch, window], (distribution.levels or 0) // 2)
    symbols = tf.zeros([batch, time + window], tf.int32)
    begun = Settling(none, none, middle, symbols, state, tf.constant(0))
    (last,) = tf.while_loop(
        lambda now: tf.reduce_any(now.first < time), one_pass, (begun,), maximum_iterations=time
    )
    return last.symbols[:, :time], last.count, last.state
