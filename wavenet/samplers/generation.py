"""Generation of audio from a WaveNet, in chunks or at once, by any sampler.

The noise of sample t depends only on t, the seed and the row, so a waveform does not depend on the
batch, the chunk length or the sampler.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.errors import require
from onepass.networks.conditions import only_timed
from onepass.networks.symbols import NO_STOP, Prompt
from onepass.samplers import methods_of
from onepass.samplers.cached import chunk_length, in_chunks
from wavenet.front import PassCount, Request
from wavenet.samplers.numba.sampler import check_known, is_known
from wavenet.samplers.symbols import autoregressive
from wavenet.sound_network import Network

CHUNK_SAMPLES = 1024

__all__ = ["CHUNK_SAMPLES", "Request", "condition_of", "generate", "is_known", "stream"]


def generate(network: Network, request: Request, backend: str = "auto") -> np.ndarray:
    """Return the levels of the requested waveforms, without primes, int32 [batch, num_samples]."""
    return np.concatenate(list(stream(network, request, backend)), axis=1)


def stream(
    network: Network,
    request: Request,
    backend: str = "auto",
    chunk_samples: int = CHUNK_SAMPLES,
    count: PassCount | None = None,
) -> Iterator[np.ndarray]:
    """Return an iterator over the levels of `generate` in chunks [batch, up to chunk_samples].

    The backend is one of `SoundSampler.methods`; any other sampler of `onepass.samplers`, such as
    "naive", yields the whole waveform as one chunk.
    """
    symbols, start = autoregressive(network).symbol_network, primed_samples(request)
    if start % symbols.block:
        raise ValueError(
            f"`prefix` must be a multiple of {symbols.block} samples, which are drawn as one, got "
            f"{start}."
        )
    sampler = sampler_of(network, backend)
    if sampler is None:
        return (_whole(network, request, backend) for _ in range(1))
    total, rows, noise = request.num_samples, request.rows, network.likelihood.noise
    length = chunk_length(chunk_samples, total, symbols.block, symbols.longest)
    condition = condition_of(network, request)
    return in_chunks(
        sampler,
        len(rows),
        lambda *place: noise(request.seed, rows, *place),
        condition,
        total,
        length,
        request.temperature,
        request.prime,
        count,
    )


def sampler_of(network: Network, backend: str) -> Any:
    """Return a backend's chunked sampler, or None if it can only generate whole waveforms."""
    known = methods_of(network, network.likelihood)
    require(backend in known, "method", f"one of {', '.join(known)}", repr(backend))
    if backend == "numba":
        check_known(network)
    name = "auto" if backend == "cached" else backend
    return autoregressive(network).samplers.find_registered(name)


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


def _whole(network: Network, request: Request, method: str) -> np.ndarray:
    start, rows, total = primed_samples(request), request.rows, request.num_samples
    noise, prompt = network.likelihood.noise(request.seed, rows, 0, start + total), None
    condition = only_timed(condition_of(network, request))
    if request.prime is not None:
        symbols = tf.pad(tf.constant(request.prime, tf.int32), [[0, 0], [0, total]])
        prompt = Prompt(symbols, tf.fill([len(rows)], start), tf.constant(NO_STOP))
    heat = tf.constant(request.temperature, tf.float32)
    drawn = autoregressive(network).samplers.draw(method, noise, condition, heat, prompt)
    return drawn.numpy()[:, start:]
