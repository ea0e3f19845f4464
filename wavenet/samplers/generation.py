"""Generation of audio from a WaveNet, in chunks or at once, by any sampler.

The noise of sample t depends only on t, the seed and the row, so a waveform does not depend on the
batch, the chunk length or the sampler.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import UserError, require
from onepass.likelihoods import noise
from onepass.networks.any_length import pad_time
from onepass.networks.conditions import Condition, only_timed
from onepass.networks.symbols import NO_STOP, Prompt
from onepass.samplers import methods_of
from onepass.samplers.sequential import chunk_length
from onepass.samplers.speculative import (
    RULES,
    Acceptance,
    Address,
    Block,
    LastPass,
    Settled,
    SteppedPasses,
    settle_block,
)
from wavenet.front import PassCount, Request
from wavenet.network import Network
from wavenet.samplers.symbols import WINDOW, SoundSymbols, autoregressive

CHUNK_SAMPLES = 1024
STREAMED = ("auto", "cached")  # methods that draw chunk by chunk


def generate(network: Network, request: Request, method: str = "auto") -> np.ndarray:
    """Return the levels of the requested waveforms, without primes, int32 [batch, num_samples]."""
    return np.concatenate(list(stream(network, request, method)), axis=1)


def stream(
    network: Network,
    request: Request,
    method: str = "auto",
    chunk_samples: int = CHUNK_SAMPLES,
    count: PassCount | None = None,
    weights: str = "float32",
) -> Iterator[np.ndarray]:
    """Return an iterator over the levels of `generate` in chunks [batch, up to chunk_samples].

    The method is one of `SoundSampler.methods` but "speculative". "fixed-point" yields blocks of
    `WINDOW` samples, and methods of whole waveforms, such as "naive", one chunk. `weights` other
    than float32 need the method "auto".
    """
    known = methods_of(network, network.likelihood)
    require(method in known, "method", f"one of {', '.join(known)}", repr(method))
    needs_auto = weights == "float32" or method == "auto"
    require(needs_auto, "weights", f"float32 for the method {method!r}", weights)
    if method == "fixed-point":
        sampler = network.compiled.once("fixed-point", lambda: SpeculativeSampler(network))
        return sampler.stream(request, count or PassCount())
    model, rows, start = autoregressive(network), request.rows, primed_samples(request)
    condition = only_timed(condition_of(network, request))
    total = start + request.num_samples
    heat, prompt = tf.constant(request.temperature, tf.float32), None
    if request.prime is not None:
        symbols = tf.pad(tf.constant(request.prime, tf.int32), [[0, 0], [0, request.num_samples]])
        prompt = Prompt(symbols, tf.fill([len(rows)], start), tf.constant(NO_STOP))

    def noise_of(first: int, length: int) -> tf.Tensor:
        return network.likelihood.noise(request.seed, rows, first, length)

    if weights != "float32":
        model.samplers.find_narrow(weights, method, heat, condition, total)
    if method in STREAMED:
        chunk = chunk_length(chunk_samples, total, model.symbol_network.block)
        parts = model.samplers.stream(
            method,
            noise_of,
            len(rows),
            total,
            chunk,
            condition,
            heat,
            prompt,
            start,
            weights=weights,
        )
        return _after(start, parts)
    drawn = model.samplers.draw(method, noise_of(0, total), condition, heat, prompt, start)
    return iter([drawn.numpy()[:, start:]])


def machine_fault(network: Network) -> str:
    """Return why the step machine cannot draw a sound of a network, or ""."""
    model = autoregressive(network)
    specs = model.symbol_network.conditions
    condition = {name: tf.zeros([1, 1, x.shape[-1]], x.dtype) for name, x in specs.items()}
    return model.samplers.machine_fault(1, Condition(condition, {}))


def condition_of(network: Network, request: Request) -> np.ndarray | None:
    """Return the condition of prime and waveforms, [batch, time, channels], or None."""
    total = primed_samples(request) + request.num_samples
    condition = network.condition(request.frames, request.speaker, total)
    if condition is not None and condition.shape[1] < total:
        raise ValueError(f"`frames` must cover {total} samples, they cover {condition.shape[1]}.")
    return condition


def primed_samples(request: Request) -> int:
    """Return the number of samples in the prime, 0 without one."""
    return 0 if request.prime is None else request.prime.shape[1]


def _after(start: int, parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the parts without the first `start` samples of all."""
    for part in parts:
        if part.shape[1] > start:
            yield part[:, start:]
        start = max(0, start - part.shape[1])


class SpeculativeSampler:
    """A sampler that verifies blocks proposed by a draft, with the current weights of both.

    Args:
      draft: a student's draft; None: each pass proposes what the one before drew, which is the
        fixed-point sampler.
      block_samples: samples per proposal, rounded up to a multiple of the network's bunch and the
        draft's block.
    """

    def __init__(
        self,
        network: Network,
        draft: Any = None,
        acceptance: Acceptance = "coupling",
        block_samples: int = WINDOW,
    ):
        if acceptance not in RULES:
            raise UserError(f"`acceptance` must be {' or '.join(RULES)}, got {acceptance!r}.")
        symbols = SoundSymbols(network)
        if not symbols.has_chunks:
            raise ValueError(
                "`network` must have no context stack and no `prediction_windows` for passes over "
                "blocks."
            )
        self._network, self._own, self._acceptance = network, draft, acceptance
        self._draft: Any = draft or LastPass()
        self._passes = SteppedPasses(symbols)
        together = math.lcm(symbols.block, 1 if draft is None else draft.block_samples)
        self.block_samples = -(-block_samples // together) * together
        self._block = tf.function(self.block, jit_compile=True, autograph=False)

    def stream(self, request: Request, count: PassCount) -> Iterator[np.ndarray]:
        """Yield the levels of the waveforms block by block, int32 [batch, up to block_samples].

        Samples of the prime are not among them.
        """
        by_rejection, own = self._acceptance == "rejection", self._own
        if own is not None and request.prime is not None:
            raise UserError("`prefix` must be None for drafts.")
        if by_rejection and request.temperature != 1.0:
            raise UserError(f"The temperature must be 1 for drafts, got {request.temperature:g}.")
        return _after(primed_samples(request), self._blocks(request, count, by_rejection))

    def _blocks(
        self, request: Request, count: PassCount, by_rejection: bool
    ) -> Iterator[np.ndarray]:
        network, length, rows = self._network, self.block_samples, tf.constant(request.rows)
        batch, seed = len(request.rows), noise.as_key(request.seed)
        heat = tf.constant(request.temperature, tf.float32)
        condition = condition_of(network, request)
        known = np.zeros([batch, 0], np.int32) if request.prime is None else request.prime
        total = known.shape[1] + request.num_samples
        begun = np.full([batch, -(-total // length) * length], network.likelihood.levels // 2)
        begun[:, : known.shape[1]] = known
        states: Any = self._passes.initial_state(batch), self._draft.initial_state(batch)
        every = itertools.repeat(None) if self._own is None else None
        conditions = every or self._own.conditions(request, length)
        for start, drafted in zip(range(0, total, length), conditions, strict=False):
            end = start + length
            part = None if condition is None else pad_time(condition[:, start:end], length)
            part = only_timed(part)
            where = Address(seed, rows, tf.constant(start))
            drawn = network.likelihood.noise(seed, rows, start, length)
            here = Block(drawn, part, heat, drafted)
            if by_rejection:
                here = here._replace(noise=self._draft.noise(where, length), address=where)
            symbols = tf.constant(begun[:, start:end], tf.int32)
            first = tf.fill([batch], int(np.clip(known.shape[1] - start, 0, length)))
            done = self._block(here, states, symbols, first)
            states = done.states
            corrected = 0.0 if self._own is None else float(done.corrected.numpy().mean())
            count.add(int(done.passes), length, corrected)
            yield done.symbols.numpy()[:, : total - start]

    def block(self, block: Block, states: Any, symbols: tf.Tensor, known: tf.Tensor) -> Settled:
        """Draw a complete block in as many passes as needed; a pure function.

        Of the symbols int32 [batch, block_samples], the first `known` [batch] are final.
        """
        rule, likelihood = RULES[self._acceptance], self._network.likelihood
        return settle_block(
            self._passes, likelihood, rule, self._draft, block, states, symbols, known
        )
