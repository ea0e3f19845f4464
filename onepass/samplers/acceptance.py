"""The two rules by which a model accepts the symbols that a draft proposes.

Coupling keeps a proposal if it equals the symbol that the model itself draws with its noise. The
symbols are the same as with every other sampler for the same noise, whatever the draft proposes, at
any temperature. It suits tokens, and all cases in which samples must not change. With 65,536 levels
it seldom keeps a proposal, because the draft must hit the exact level.

Rejection keeps a proposal from the draft's distribution q with probability min(1, p / q), where p
is the model's distribution; the first that is not kept is redrawn from the residual distribution

    r(x) = max(0, p(x) - q(x)) / sum_x max(0, p(x) - q(x))

so that every symbol has the model's distribution (Leviathan et al. 2023, arXiv 2211.17192, theorem
3.5; for continuous drafts Wang et al. 2024, arXiv 2411.11925), but differs from the draws of the
other samplers. r is drawn by rejection: a candidate from p is kept with probability max(0, 1 - q /
p). It suits many levels with similar neighbours, as in 16-bit audio.

All random numbers have an address (seed, row, position), so a symbol depends only on earlier
symbols and on the numbers at its address: block length and batch affect only rounding.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from onepass.likelihoods import noise
from onepass.likelihoods.distribution import Distribution

CANDIDATES = 16  # per round
ROUNDS = 1 << 17  # at most; if all fail, p and q differ only by rounding
KEEPING, DRAWING = 1, 2  # folded into the seed, for independent random numbers


class SymbolDistributions(NamedTuple):
    """Distributions of symbols, given by parameters [..., parameters]."""

    likelihood: Distribution
    parameters: tf.Tensor

    def log_prob(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of symbols, float32 [...], in nats."""
        return self.likelihood.log_prob(self.parameters, symbols)

    def at(self, place: tf.Tensor) -> "SymbolDistributions":
        """Return the distributions at one position per row, [batch]."""
        return self._replace(parameters=tf.gather(self.parameters, place, batch_dims=1))


class Address(NamedTuple):
    """The address of random numbers: seed uint32 [2], rows int32 [batch], start [] or [batch]."""

    seed: tf.Tensor
    rows: tf.Tensor
    start: tf.Tensor


class Block(NamedTuple):
    """The inputs of a draft and of a rule for one block of n symbols."""

    # The noise of the model's distribution, [batch, n, noise channels]; for rejection, the noise of
    # the draft's distribution.
    noise: tf.Tensor
    condition: Any
    temperature: tf.Tensor  # 1 samples the model, less nears its mode; 1 for rejection
    draft_condition: Any = None  # if it differs from the model's
    address: Address | None = None  # of the random numbers for rejection


# Function from the first rejected position [batch] to new symbols there, int32 [batch, 1 or n].
Fresh = Callable[[tf.Tensor], tf.Tensor]
# Function from a guess int32 [batch, n], the model's distributions given the guess before each
# symbol, the draft's distributions or None, and the block, to which symbols are kept, bool [batch,
# n], and a `Fresh`.
Rule = Callable[
    [tf.Tensor, SymbolDistributions, SymbolDistributions | None, Block], tuple[tf.Tensor, Fresh]
]


def coupling(
    guess: tf.Tensor, p: SymbolDistributions, q: SymbolDistributions | None, block: Block
) -> tuple[tf.Tensor, Fresh]:
    """Keep the symbols that the model itself draws with its noise; a `Rule`."""
    del q  # any proposal will do
    drawn = p.likelihood.sample(p.parameters, block.noise, block.temperature)
    own = tf.cast(tf.reshape(drawn, guess.shape), tf.int32)
    return own == guess, lambda first: own


def rejection(
    guess: tf.Tensor, p: SymbolDistributions, q: SymbolDistributions | None, block: Block
) -> tuple[tf.Tensor, Fresh]:
    """Keep symbols with probability min(1, p / q); a `Rule`."""
    address, size = block.address, guess.shape[1]
    if q is None or address is None:
        raise ValueError("`draft` must have densities to be accepted by rejection.")

    def fresh(first: tf.Tensor) -> tf.Tensor:
        at = tf.minimum(first, size - 1)
        where = address._replace(start=address.start + at)
        return draw_residuals(q.at(at), p.at(at), where, first < size)[:, tf.newaxis]

    return accept_proposals(guess, q, p, address), fresh


Acceptance = Literal["coupling", "rejection"]
RULES: dict[str, Rule] = {"coupling": coupling, "rejection": rejection}


def accept_proposals(
    guess: tf.Tensor, q: SymbolDistributions, p: SymbolDistributions, address: Address
) -> tf.Tensor:
    """Return which proposals int32 [batch, time] from `q` are kept, bool [batch, time]."""
    seed = noise.fold_in(address.seed, KEEPING)
    uniform = noise.uniform(seed, address.rows, address.start, guess.shape[1])[..., 0]
    return tf.math.log(uniform) <= p.log_prob(guess) - q.log_prob(guess)


def draw_residuals(
    q: SymbolDistributions, p: SymbolDistributions, address: Address, wanted: tf.Tensor
) -> tf.Tensor:
    """Draw levels [batch] from the residual distributions of the rows that `wanted` selects."""

    def draw(
        count: tf.Tensor, levels: tf.Tensor, found: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        drawn, suits = _candidate(q, p, address, count)
        return count + 1, tf.where(found, levels, drawn), found | suits

    start = (tf.constant(0), tf.zeros_like(address.rows), ~wanted)
    return tf.while_loop(
        lambda *state: ~tf.reduce_all(state[2]), draw, start, maximum_iterations=ROUNDS
    )[1]


def _candidate(
    q: SymbolDistributions, p: SymbolDistributions, address: Address, count: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the first accepted candidate of a round, [batch], and whether there is one."""
    rows = tf.shape(address.rows)[0]
    numbers = count * CANDIDATES + tf.range(CANDIDATES)
    seeds = noise.fold_in(noise.fold_in(address.seed, DRAWING), numbers)
    seeds = tf.repeat(seeds, rows, 0)
    every_row, start = (tf.tile(x, [CANDIDATES]) for x in (address.rows, address.start))
    symbols_noise = p.likelihood.noise(seeds, every_row, start, 1)
    uniform = noise.uniform(seeds, every_row, start, 1, lane=1)
    symbols_noise = tf.reshape(symbols_noise, [CANDIDATES, rows, symbols_noise.shape[-1]])
    drawn = p.likelihood.sample(p.parameters, symbols_noise)
    uniform = tf.reshape(uniform[:, 0, 0], [CANDIDATES, rows])
    suits = uniform < -tf.math.expm1(q.log_prob(drawn) - p.log_prob(drawn))
    number = tf.range(CANDIDATES)[:, tf.newaxis]
    first = tf.reduce_min(tf.where(suits, number, CANDIDATES - 1), 0)
    return tf.reduce_sum(tf.where(number == first, drawn, 0), 0), tf.reduce_any(suits, 0)
