"""Drafts verified against their target: kept, or drawn again, so that the target's law results.

A draft x of q is kept with probability min(1, p(x) / q(x)), else drawn again from the residual

    r(x) = max(0, p(x) - q(x)) / sum_x max(0, p(x) - q(x))

and the result has the law p, whatever q is (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.5).
r is drawn by rejection, without a sum over levels: a candidate of p is kept with probability max(0,
1 - q / p) (Wang et al. 2024, arXiv 2411.11925, for continuous drafts).
"""

from typing import NamedTuple

import tensorflow as tf

from likelihoods import Distribution, noise

CANDIDATES = 16  # in a round
ROUNDS = 1 << 17  # at most: where so many candidates fail, p and q differ by rounding alone
KEEPING, DRAWING = 1, 2  # folded into the seed, for random numbers of their own


class Conditionals(NamedTuple):
    """Distributions of levels, by their parameters [..., parameters]."""

    likelihood: Distribution
    parameters: tf.Tensor

    def log_prob(self, levels):
        """Return nats, float32 [...]."""
        return self.likelihood.log_prob(self.parameters, levels)

    def at(self, place):
        """Return those of one position [batch] in each row of [batch, time, parameters]."""
        return self._replace(parameters=tf.gather(self.parameters, place, batch_dims=1))


class Address(NamedTuple):
    """The address of random numbers: seed uint32 [2], rows int32 [batch], position of the first."""

    seed: tf.Tensor
    rows: tf.Tensor
    start: tf.Tensor


def kept(drafts, q: Conditionals, p: Conditionals, address: Address):
    """Return which drafts int32 [batch, time] of `q` are kept, given p after each, bool."""
    seed = noise.fold_in(address.seed, KEEPING)
    uniform = noise.uniform(seed, address.rows, address.start, drafts.shape[1])[..., 0]
    return tf.math.log(uniform) <= p.log_prob(drafts) - q.log_prob(drafts)


def redrawn(q: Conditionals, p: Conditionals, address: Address, wanted):
    """Return levels of the residual distribution of one position per row where wanted, [batch]."""

    def draw(count, levels, found):
        drawn, suits = _candidate(q, p, address, count)
        return count + 1, tf.where(found, levels, drawn), found | suits

    start = (tf.constant(0), tf.zeros_like(address.rows), ~wanted)
    return tf.while_loop(
        lambda *state: ~tf.reduce_all(state[2]), draw, start, maximum_iterations=ROUNDS
    )[1]


def _candidate(q: Conditionals, p: Conditionals, address: Address, count):
    """Return the first kept one of a round of candidates, [batch], and whether there is one."""
    rows = tf.shape(address.rows)[0]
    numbers = count * CANDIDATES + tf.range(CANDIDATES)
    seeds = noise.fold_in(noise.fold_in(address.seed, DRAWING), numbers)
    where = (
        tf.repeat(seeds, rows, 0),
        tf.tile(address.rows, [CANDIDATES]),
        tf.tile(address.start, [CANDIDATES]),
        1,
    )
    own, uniform = p.likelihood.noise(*where), noise.uniform(*where, lane=1)
    drawn = p.likelihood.sample(p.parameters, tf.reshape(own, [CANDIDATES, rows, own.shape[-1]]))
    uniform = tf.reshape(uniform[:, 0, 0], [CANDIDATES, rows])
    suits = uniform < -tf.math.expm1(q.log_prob(drawn) - p.log_prob(drawn))
    number = tf.range(CANDIDATES)[:, tf.newaxis]
    first = tf.reduce_min(tf.where(suits, number, CANDIDATES - 1), 0)
    return tf.reduce_sum(tf.where(number == first, drawn, 0), 0), tf.reduce_any(suits, 0)
