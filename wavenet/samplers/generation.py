"""Sound from a WaveNet: whole or in chunks, by any of the samplers, which agree.

Seed and row determine a sound: whatever the batch, the chunks or the sampler, the noise of sample t
is the same, so that the waveform is too.
"""

import functools
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from wavenet.network import WaveNet
from wavenet.samplers.fixed_point import FixedPointSampler
from wavenet.samplers.numba.sampler import is_known, sampler_for
from wavenet.samplers.vocoder import VocoderSampler
from wavenet.samplers.xla import XlaSampler
from wavenet.sound_network import Network
from wavenet.speech_model import PassCount, Request
from wavenet.vocoder import VocoderWaveNet

Backend = Literal["auto", "numba", "xla", "fixed-point", "naive"]
CHUNK_SAMPLES = 1024


class NaiveSampler:
    """The definition: a full pass over the receptive field for every sample."""

    def __init__(self, network: Network, window_samples: int) -> None:
        self.network = network
        self.window_samples = window_samples
        self._parameters = tf.function(self._last, autograph=False)

    def parameters(
        self, levels: np.ndarray, condition: tf.Tensor | None, position: int
    ) -> tf.Tensor:
        """Return the parameters of sample `position` given those before, [batch, parameters]."""
        # The window begins at the start of the sound or one receptive field back, so that the
        # zeros a convolution pads with are those the sound itself would have.
        first = max(0, position + 1 - self.window_samples)
        first -= first % self.network.config.block_samples
        window = slice(first, first + self.window_samples + self.network.config.block_samples - 1)
        part = None if condition is None else condition[:, window]
        return self._parameters(tf.constant(levels[:, window]), part, tf.constant(position - first))

    def _last(self, levels: tf.Tensor, condition: tf.Tensor | None, index: tf.Tensor) -> tf.Tensor:
        return self.network(self.network.inputs(levels), condition)[:, index]


def generate(network: Network, request: Request, backend: Backend = "auto") -> np.ndarray:
    """Return the levels of the requested sounds, int32 [batch, num_samples], without the prime."""
    return np.concatenate(list(stream(network, request, backend)), axis=1)


def stream(
    network: Network,
    request: Request,
    backend: Backend = "auto",
    chunk_samples: int = CHUNK_SAMPLES,
    count: PassCount | None = None,
) -> Iterator[np.ndarray]:
    """Yield the same levels in chunks int32 [batch, up to chunk_samples], as they are made.

    Args:
      network: the network, used with its current weights.
      request: the sounds to generate.
      backend: "numba" runs on this processor, "xla" on TensorFlow's device, "fixed-point" there, in
        passes over many samples, "naive" evaluates the whole network for every sample; "auto" takes
        numba, or xla where there is an accelerator, or no Numba loop for the network and its
        distribution.
      chunk_samples: length of a chunk, in samples; with a context stack, its block is taken
        instead.
      count: records the passes of "fixed-point".
    """
    _check(network, request)
    if backend == "auto":
        accelerated = tf.config.list_physical_devices("GPU")
        backend = "numba" if is_known(network) and not accelerated else "xla"
    if backend == "naive":
        yield _naive(network, request)
        return
    sampler = _sampler(network, backend)
    length = _chunk_length(network, request, chunk_samples)
    yield from _chunks(network, sampler, request, length, count)


def condition_of(network: Network, request: Request) -> np.ndarray | None:
    """Return the whole condition, float32 [batch, time, channels], or None."""
    total = primed_samples(request) + request.num_samples
    condition = network.condition(request.frames, request.speaker, total)
    if condition is not None and condition.shape[1] < total:
        raise ValueError(f"`frames` must cover {total} samples, they cover {condition.shape[1]}.")
    return condition


def primed_samples(request: Request) -> int:
    """Return the number of samples of the prime."""
    return 0 if request.prime is None else request.prime.shape[1]


def _chunks(
    network: Network, sampler: Any, request: Request, length: int, count: PassCount | None
) -> Iterator[np.ndarray]:
    condition = condition_of(network, request)
    start = primed_samples(request)
    state = sampler.initial_state(len(request.rows))
    if request.prime is not None:
        before = None if condition is None else condition[:, :start]
        state = sampler.prime(state, before, tf.constant(request.prime, tf.int32))
    for done in range(0, request.num_samples, length):
        first = start + done
        noise = network.likelihood.noise(request.seed, request.rows, first, length)
        part = None if condition is None else padded(condition[:, first : first + length], length)
        levels, found, state = sampler.generate_chunk(state, part, noise, request.temperature)
        if count is not None and sampler.found == "passes":
            count.add(int(found), length)
        yield np.asarray(levels)[:, : request.num_samples - done]


def _naive(network: Network, request: Request) -> np.ndarray:
    start, rows = primed_samples(request), len(request.rows)
    levels = np.full([rows, start + request.num_samples], network.config.levels // 2, np.int32)
    if request.prime is not None:
        levels[:, :start] = request.prime
    noise = network.likelihood.noise(request.seed, request.rows, start, request.num_samples)
    condition = condition_of(network, request)
    return redrawn(network, levels, start, noise, condition, request.temperature)[0][:, start:]


def redrawn(
    network: Network,
    levels: np.ndarray,
    start: int,
    noise: tf.Tensor,
    condition: tf.Tensor | None,
    temperature: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return levels int32 [batch, time] with all from `start` on drawn, and their parameters."""
    time, config = levels.shape[1], network.config
    # The sample itself, which the network shifts out, stands behind its receptive field.
    window_samples = time if config.context_layers else min(time, config.receptive_field + 1)
    sampler = NaiveSampler(network, window_samples)
    levels, drawn = levels.copy(), []
    for t in range(start, time):
        parameters = sampler.parameters(levels, condition, t)
        levels[:, t] = network.likelihood.sample(parameters, noise[:, t - start], temperature)
        drawn.append(parameters)
    return levels, tf.stack(drawn, 1)


def padded(values: tf.Tensor, length: int) -> tf.Tensor:
    """Return [batch, time, ...] at full length, so that nothing is compiled for a rest."""
    others = [[0, 0]] * (len(values.shape) - 2)
    return tf.pad(values, [[0, 0], [0, length - values.shape[1]], *others])


def _chunk_length(network: Network, request: Request, wanted: int) -> int:
    block = network.config.block_samples
    if network.config.context_layers:
        return block
    length = min(wanted, max(64, 1 << (request.num_samples - 1).bit_length()))
    return -(-length // block) * block


def _sampler(network: Network, backend: Backend) -> Any:
    """Return the sampler of a backend; the network keeps those that XLA compiles."""
    if backend == "numba":
        return sampler_for(network)
    if backend not in network.samplers:
        make = FixedPointSampler if backend == "fixed-point" else xla_sampler
        network.samplers[backend] = make(network)
    return network.samplers[backend]


@functools.singledispatch
def xla_sampler(network: Network) -> Any:
    """Return the cached sampler by XLA of a network; another kind of network registers here."""
    raise TypeError(f"`network` must be a network of sound, got {type(network).__name__}.")


@xla_sampler.register
def _(network: WaveNet) -> XlaSampler:
    return XlaSampler(network)


@xla_sampler.register
def _(network: VocoderWaveNet) -> VocoderSampler:
    return VocoderSampler(network)


def _check(network: Network, request: Request) -> None:
    block = network.config.block_samples
    if primed_samples(request) % block:
        raise ValueError(
            f"`prime` must be a multiple of {block} samples, which are drawn as one, got "
            f"{primed_samples(request)}."
        )
