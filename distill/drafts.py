"""Students as drafts for speculative sampling: one pass of the flows proposes a block."""

from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from onepass.likelihoods import Distribution, Gaussian, LogisticMixture, codec
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.affine import FlowOutput
from onepass.likelihoods.codec import Codec
from onepass.samplers.speculative import Address, Block, SymbolDistributions

FARTHEST = 20.0  # limit of the noise inferred for a corrected symbol; real noise stays below it
LOWEST_LOG_SCALE = -40.0  # so low that it never limits the scale of a draft's likelihood
# Standard noise of each kind, float32 [rows, length, 2].
NOISE = {"logistic": counter_noise.logistic, "normal": counter_noise.normal}


class Flows(Protocol):
    """Flows over noise that run block by block."""

    @property
    def noise_kind(self) -> str:
        """The distribution of the noise that the flows transform: "logistic" or "normal"."""

    def initial_state(self, batch: int) -> Any:
        """Return the state before the first element."""

    def advance(self, noise: tf.Tensor, state: Any, condition: Any) -> tuple[FlowOutput, Any]:
        """Return the output for the next noise [batch, n], and the state after it."""


class Flowed(NamedTuple):
    """A block's noise, float32 [batch, n], and the outputs and symbols of the newest proposal."""

    noise: tf.Tensor
    location: tf.Tensor
    log_scale: tf.Tensor
    symbols: tf.Tensor


class FlowDraft:
    """A draft that proposes a block of symbols in one pass of flows.

    With acceptance by coupling, the flows start from the model's own noise. Where the model has
    drawn a symbol that differs from the proposed symbol, the flow is inverted, z_t = (x_t - mu_t) /
    s_t, and the draft continues from that noise. The levels of the model's `codec` must be evenly
    spaced on the scale that networks read. The flows' condition, `reads`, is "model", the model's;
    "own", the draft's; or "nothing".
    """

    def __init__(self, flows: Flows, codec: Codec, reads: str = "model"):
        self._flows, self._codec, self._reads = flows, codec, reads
        number = codec.levels or 0
        self._likelihood: Distribution = Gaussian(number, LOWEST_LOG_SCALE)
        if flows.noise_kind == "logistic":
            self._likelihood = LogisticMixture(number, 1, LOWEST_LOG_SCALE)

    def initial_state(self, batch: int) -> Any:
        """Return the flows' state before the first symbol."""
        return self._flows.initial_state(batch)

    def noise(self, address: Address, length: int) -> tf.Tensor:
        """Return the draft's own noise for a block, float32 [batch, length, 1]."""
        make_noise = NOISE[self._flows.noise_kind]
        return make_noise(address.seed, address.rows, address.start, length)[..., :1]

    def memory(self, block: Block) -> Flowed:
        """Return the memory for a block's first proposal: the block's noise, and no outputs yet."""
        noise = block.temperature * tf.cast(block.noise[..., -1], tf.float32)
        zeros = tf.zeros_like(noise)
        return Flowed(noise, zeros, zeros, tf.fill(tf.shape(noise), -1))

    def propose(
        self, block: Block, symbols: tf.Tensor, known: tf.Tensor, memory: Flowed, state: Any
    ) -> tuple[tf.Tensor, Flowed, Any]:
        """Return the symbols, known or proposed, the new memory, and the state after the block.

        The memory is what the previous proposal for this block returned, or `memory(block)`; the
        flows' state is that before the block.
        """
        place = tf.range(symbols.shape[1])
        wave = self._codec.scale(symbols)
        inverted = (wave - memory.location) * tf.exp(-memory.log_scale)
        inverted = tf.clip_by_value(inverted, -FARTHEST, FARTHEST)
        corrected = (place == known[:, tf.newaxis] - 1) & (symbols != memory.symbols)
        noise = tf.where(corrected, inverted, memory.noise)
        given = block.draft_condition if self._reads == "own" else None
        if self._reads == "model":
            (given,) = block.condition.timed.values()
        flowed, after = self._flows.advance(noise, state, given)
        location, log_scale = (tf.cast(x, tf.float32) for x in flowed[1:])
        proposed = codec.sample_level(location, log_scale, noise, self._codec.levels or 0)
        guess = tf.where(place < known[:, tf.newaxis], symbols, proposed)
        return guess, Flowed(noise, location, log_scale, guess), after

    def conditionals(self, memory: Flowed) -> SymbolDistributions:
        """Return the distribution of every symbol of the newest proposal."""
        weight = [tf.zeros_like(memory.location)] * (self._likelihood.num_parameters - 2)
        parameters = tf.stack([*weight, memory.location, memory.log_scale], -1)
        return SymbolDistributions(self._likelihood, parameters)
