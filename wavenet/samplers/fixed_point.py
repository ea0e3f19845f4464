"""Sound by iterating passes over a window of samples to their fixed point.

With its noise given, a sound is a deterministic function of itself: sample t is f_t(samples before
t), and one pass of the network computes f for a whole window of guesses. Iterated, it comes to the
sound of the other samplers, in at most as many passes as there are samples: Song et al. 2021 (arXiv
2002.03629), Wiggers and Hoogeboom 2020 (2002.09928).

The stop is exact. Every pass settles the samples up to and including the first that it changes; the
window then begins behind them, in each row of a batch for itself.
"""

import tensorflow as tf

from wavenet.samplers.block_pass import BlockPass, PassState, window
from wavenet.sound_network import Network

WINDOW_SAMPLES = 64


class FixedPointSampler:
    """Generates with a network's current weights; compiled once for each chunk shape.

    Args:
      network: without a context stack.
      window_samples: that a pass computes; rounded up to whole bunches.
    """

    found = "passes"  # in addition to levels and state, what `generate_chunk` returns

    def __init__(self, network: Network, window_samples: int = WINDOW_SAMPLES):
        self.network, self._pass = network, BlockPass(network)
        bunch = self._pass.bunch
        self.window_samples = -(-window_samples // bunch) * bunch
        self._chunk = tf.function(self.chunk, jit_compile=True, autograph=False)
        self._prime = tf.function(self._primed, autograph=False, reduce_retracing=True)

    def initial_state(self, batch: int) -> PassState:
        """Return the state before the first sample: silence."""
        return self._pass.initial_state(batch)

    def generate_chunk(self, state: PassState, condition, noise, temperature: float = 1.0):
        """Return the next levels int32 [batch, time], the passes they took, and the next state.

        Arguments as for `XlaSampler.generate_chunk`; for a vocoder the noise is of whole bunches.
        """
        return self._chunk(state, condition, noise, tf.constant(temperature, tf.float32))

    def prime(self, state: PassState, condition, levels) -> PassState:
        """Return the state after the given levels, int32 [batch, time]: one pass, whole bunches."""
        return self._prime(state, condition, levels)

    def _primed(self, state, condition, levels):
        read = self._pass(state, levels, condition)[1]
        return self._pass.after(read, levels, tf.fill(tf.shape(levels)[:1], tf.shape(levels)[1]))

    def chunk(self, state: PassState, condition, noise, temperature):
        """Return the result of `generate_chunk`, a pure function of tensors and the weights."""
        (batch, time), length = noise.shape[:2], self.window_samples
        middle, bunch = self.network.config.levels // 2, self._pass.bunch
        beyond = [[0, 0], [0, length], [0, 0]]
        noise = tf.pad(noise, beyond)
        condition = None if condition is None else tf.pad(condition, beyond)
        place, row = tf.range(length), tf.range(batch)[:, None] + tf.zeros([1, length], tf.int32)

        def one_pass(first, settled, guess, levels, state, passes):
            here = None if condition is None else window(condition, first, length)
            parameters, read = self._pass(state, guess, here)
            fresh = self.network.likelihood.sample(
                parameters, window(noise, first, length), temperature
            )
            fresh = tf.where(place < settled[:, None], guess, fresh)
            final = tf.reduce_min(tf.where(fresh != guess, place + 1, length), 1)
            final = tf.minimum(final, time - first)
            whole = final // bunch * bunch
            at = tf.stack([row, first[:, None] + place], -1)
            return (
                first + whole,
                final - whole,
                window(tf.concat([fresh, tf.repeat(fresh[:, -1:], length, 1)], 1), whole, length),
                tf.tensor_scatter_nd_update(levels, at, fresh),
                self._pass.after(read, fresh, whole),
                passes + 1,
            )

        none = tf.zeros([batch], tf.int32)
        _, _, _, levels, state, passes = tf.while_loop(
            lambda first, *_: tf.reduce_any(first < time),
            one_pass,
            (
                none,
                none,
                tf.fill([batch, length], middle),
                tf.zeros([batch, time + length], tf.int32),
                state,
                tf.constant(0),
            ),
            maximum_iterations=time,
        )
        return levels[:, :time], passes, state
