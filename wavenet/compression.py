"""A lossless code for 16-bit sound by a WaveNet's exact conditionals, decoded by its cached step.

One parallel pass gives the distributions of a whole recording to the encoder. The decoder takes
them from the step of the cached sampler, sample by sample, and feeds back the decoded samples.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from compression.container import Container, check_decoded, checksum_of, digest_of, read_for
from compression.splits import Categorical, Mixture
from compression.stream import Decoder, Encoder, Layout, depth_of, odds_of
from likelihoods import Categorical as Softmax
from likelihoods import Gaussian, GaussianMixture, LogisticMixture
from replicator.runs.errors import UserError
from replicator.runs.model_folder import variable_names
from wavenet.density import Density
from wavenet.network import WaveNet
from wavenet.samplers.xla import Step, XlaSampler

CHUNK_SAMPLES = 4096
SIXTEEN_BIT = 1 << 16  # levels
# Of the number of levels: what a scale is taken to be at least. Outputs that are known to 1e-5 of
# the whole range cannot place a narrower component.
LEAST_SCALE = 4e-5
# Of the root mean square of an output: what it is at least when it is asked how far it may be off.
LEAST_SHARE = 0.03


class SoundCodec:
    """An encoder and decoder of recordings of levels, with the weights of the network at the call.

    Raises:
      UserError: the network has a condition that a file would have to hold, or makes blocks.
    """

    def __init__(self, network: Any):
        config = network.config
        if config.conditioner_units or config.feature_channels or config.context_layers:
            raise UserError(
                "Only a WaveNet without frames and context stack compresses: frames are made of "
                "the sound itself, and would have to be in the file."
            )
        if type(network.likelihood) not in CODES:
            raise UserError(
                "Only softmax, logistic and Gaussian outputs compress, got "
                f"{type(network.likelihood).__name__}."
            )
        self.network: WaveNet = network
        self.levels: int = config.levels
        self.depth = depth_of(self.levels)
        self._density = Density(network)
        self._parameters = tf.function(
            lambda levels, condition: network(network.inputs(levels), condition),
            autograph=False,
            reduce_retracing=True,
        )
        self._sampler = XlaSampler(network)
        self._step = tf.function(self._one_step, jit_compile=True, autograph=False)
        self._shift = tf.function(Step(network, self._sampler.rings).shift, autograph=False)

    def encode(self, levels: np.ndarray, speaker: int | None, tolerance: float) -> bytes:
        """Return the stream of a recording, int32 [samples]."""
        condition = self._condition(len(levels), speaker)
        encoder = Encoder(Layout(self.depth, 1, 1, len(levels)))
        window, past = self._density.window_samples, self._density.past_samples
        for start in range(0, len(levels), window):
            first = max(0, start - past)
            part = slice(first, start + window)
            here = None if condition is None else condition[:, part]
            found = self._parameters(tf.constant(levels[None, part], tf.int32), here)
            own = levels[start : start + window]
            distribution = self._distribution(found.numpy()[0, start - first :], tolerance)
            encoder.add([odds_of(distribution, own, self.depth)], 0, len(own))
        return encoder.finish()

    def decode(self, stream: bytes, samples: int, speaker: int | None) -> np.ndarray:
        """Return the recording int32 [samples] of a stream."""
        decoder = Decoder(stream, Layout(self.depth, 1, 1, samples))
        condition, levels = self._condition(samples, speaker), np.zeros(samples, np.int32)
        step, state = Step(self.network, self._sampler.rings), self._sampler.initial_state(1)
        past, queues = state.past, state.queues
        for start in range(0, samples, CHUNK_SAMPLES):
            count = min(CHUNK_SAMPLES, samples - start)
            here = None if condition is None else condition[:, start : start + count]
            gates = step.gate_offsets(here, 1, count)
            for t in range(count):
                found, queues = self._step(tf.constant(start + t), past, queues, gates[t])
                distribution = self._distribution(found.numpy(), 0.0)
                levels[start + t] = decoder.levels(distribution, 1, 0, 0)[0]
                past = self._shift(past, tf.constant(levels[start + t : start + t + 1]))
        return levels

    def _one_step(self, position, past, queues, gates):
        return Step(self.network, self._sampler.rings)(position, past, queues, gates)

    def _condition(self, samples: int, speaker: int | None):
        if speaker is None:
            return None
        return self.network.condition(None, tf.constant([speaker]), samples)

    def _distribution(self, outputs: np.ndarray, tolerance: float) -> Mixture | Categorical:
        """Return the distributions of samples with outputs float [samples, parameters]."""
        outputs = self.outputs(np.asarray(outputs, np.float64))
        like = np.sqrt(np.mean(np.square(outputs), 0))
        off = tolerance * (np.abs(outputs) + LEAST_SHARE * like)
        likelihood = self.network.likelihood
        return CODES[type(likelihood)](likelihood, outputs, off)

    @staticmethod
    def outputs(outputs: np.ndarray) -> np.ndarray:
        """Return the network's outputs as the code reads them, float64 [samples, parameters]."""
        return outputs


def _softmax(likelihood: Softmax, outputs: np.ndarray, off: np.ndarray) -> Categorical:
    return Categorical(outputs, off)


def _normals(
    likelihood: Gaussian | GaussianMixture, outputs: np.ndarray, off: np.ndarray
) -> Mixture:
    return _components(likelihood, outputs, off, normal=True)


def _logistics(likelihood: LogisticMixture, outputs: np.ndarray, off: np.ndarray) -> Mixture:
    return _components(likelihood, outputs, off, normal=False)


def _components(likelihood: Any, outputs: np.ndarray, off: np.ndarray, normal: bool) -> Mixture:
    half = 0.5 * (likelihood.levels - 1)
    least = max(likelihood.min_log_scale + np.log(half), np.log(LEAST_SCALE * likelihood.levels))
    weights, means, scales = _sections(likelihood, outputs)
    weights_off, means_off, scales_off = _sections(likelihood, off)
    return Mixture(
        likelihood.levels,
        weights,
        half * (means + 1.0),
        np.maximum(scales + np.log(half), least),
        (weights_off, half * means_off, scales_off),
        normal,
    )


def _sections(likelihood: Any, array: np.ndarray) -> list[np.ndarray]:
    """Return logits, means and log-scales, float64 [samples, components] each."""
    logits, means, _ = likelihood.sections
    parts = np.split(array, [logits, logits + means], -1)
    # A component alone has the whole weight.
    parts = parts if logits else [np.zeros_like(parts[1]), *parts[1:]]
    return [np.ascontiguousarray(part) for part in parts]


CODES: dict[type, Callable[[Any, np.ndarray, np.ndarray], Mixture | Categorical]] = {
    Softmax: _softmax,
    Gaussian: _normals,
    GaussianMixture: _normals,
    LogisticMixture: _logistics,
}
"""The distributions that compress, and what makes a code of their parameters and tolerances."""


def compress(
    codec: SoundCodec, recordings: list[np.ndarray], speaker: int | None, tolerance: float
) -> bytes:
    """Return the file of recordings of levels, int32 [samples] each."""
    if not recordings or not all(len(levels) for levels in recordings):
        raise UserError("There must be a recording, and a sample in each.")
    if not 0 <= tolerance <= 1e-3:
        raise UserError(f"The tolerance must be 0 to 0.001, got {tolerance:g}.")
    lengths = [len(levels) for levels in recordings]
    described: dict[str, Any] = {"lengths": lengths}
    described |= {} if speaker is None else {"speaker": speaker}
    streams = [codec.encode(levels, speaker, tolerance) for levels in recordings]
    shape = (len(recordings), sum(lengths), 1, 1)
    checksum = checksum_of(np.concatenate(recordings).astype("<u2"))
    made = (digest(codec.network), codec.levels, checksum, shape, described, tuple(streams))
    return Container("sound", *made).to_bytes()


def decompress(codec: SoundCodec, data: bytes) -> list[np.ndarray]:
    """Return the recordings of levels, int32 [samples] each, of a file."""
    found = read_for(data, "sound", digest(codec.network), codec.levels)
    lengths, speaker = found.description["lengths"], found.description.get("speaker")
    pairs = zip(found.streams, lengths, strict=True)
    recordings = [codec.decode(stream, samples, speaker) for stream, samples in pairs]
    check_decoded(np.concatenate(recordings).astype("<u2"), found)
    return recordings


def digest(network: tf.Module) -> bytes:
    """Return the digest of a network's weights, 16 bytes."""
    named = zip(variable_names(network), network.trainable_variables, strict=True)
    return digest_of({name: variable.numpy() for name, variable in named})
