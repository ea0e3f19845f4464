"""Speculative sampling of audio in blocks, with `onepass.samplers.speculative`."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.errors import UserError, require
from onepass.likelihoods import noise
from onepass.samplers.cached import pad_chunk
from onepass.samplers.speculative import RULES, Acceptance, Address, Block, Settled, settle_block
from wavenet.front import PassCount, Request
from wavenet.samplers.generation import condition_of
from wavenet.samplers.symbols import BlockPass
from wavenet.sound_network import Network

BLOCK_SAMPLES = 64


class SpeculativeSampler:
    """A sampler that verifies blocks proposed by a draft, with the current weights of both.

    Args:
      block_samples: samples per proposal, rounded up to a multiple of the network's bunch and the
        draft's block.
    """

    def __init__(
        self,
        network: Network,
        draft: Any,
        acceptance: Acceptance = "coupling",
        block_samples: int = BLOCK_SAMPLES,
    ):
        require(acceptance in RULES, "acceptance", " or ".join(RULES), repr(acceptance))
        self._network, self._draft, self._acceptance = network, draft, acceptance
        self._passes = BlockPass(network)
        together = math.lcm(self._passes.bunch, draft.block_samples)
        self.block_samples = -(-block_samples // together) * together
        self._block = tf.function(self.block, jit_compile=True, autograph=False)

    def stream(self, request: Request, count: PassCount) -> Iterator[np.ndarray]:
        """Yield the levels of the waveforms block by block, int32 [batch, up to block_samples]."""
        by_rejection = self._acceptance == "rejection"
        if request.prime is not None:
            raise UserError("`prefix` must be None for drafts.")
        if by_rejection and request.temperature != 1.0:
            raise UserError(f"The temperature must be 1 for drafts, got {request.temperature:g}.")
        network, length, rows = self._network, self.block_samples, tf.constant(request.rows)
        batch, seed = len(request.rows), noise.as_key(request.seed)
        heat, given = tf.constant(request.temperature, tf.float32), condition_of(network, request)
        states: Any = self._passes.initial_state(batch), self._draft.initial_state(batch)
        for number, own in enumerate(self._draft.conditions(request, length)):
            start = number * length
            part = None if given is None else pad_chunk(given[:, start : start + length], length)
            where = Address(seed, rows, tf.constant(start))
            if by_rejection:
                here = Block(self._draft.noise(where, length), part, heat, own, where)
            else:
                here = Block(network.likelihood.noise(*where, length), part, heat, own)
            done = self._block(here, states)
            states = done.states
            count.add(int(done.passes), length, float(done.corrected.numpy().mean()))
            yield done.symbols.numpy()[:, : request.num_samples - start]

    def block(self, block: Block, states: Any) -> Settled:
        """Draw a complete block in as many passes as needed; a pure function."""
        batch = tf.nest.flatten(states)[0].shape[0]
        symbols = tf.zeros([batch, self.block_samples], tf.int32)
        known = tf.zeros([batch], tf.int32)
        rule, likelihood = RULES[self._acceptance], self._network.likelihood
        return settle_block(
            self._passes, likelihood, rule, self._draft, block, states, symbols, known
        )
