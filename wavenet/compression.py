"""A lossless code for 16-bit sound by a WaveNet's exact conditionals, decoded by its cached step.

One parallel pass gives the distributions of a whole recording to the encoder. The decoder takes
them from the step of the cached sampler, sample by sample, and feeds back the decoded samples.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from compression.container import Container, check_decoded, checksum_of, digest_of, read_for
from compression.forms import closed, form_of, tolerances
from compression.splits import Categorical, Mixture
from compression.stream import Decoder, Encoder, Layout, depth_of, odds_of
from replicator.runs.errors import UserError
from replicator.runs.model_folder import variable_names
from wavenet.density import Density
from wavenet.network import WaveNet
from wavenet.samplers.xla import Step, XlaSampler

CHUNK_SAMPLES = 4096
SIXTEEN_BIT = 1 << 16  # levels


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
        if form_of(network.likelihood) is None:
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
        return closed(self.network.likelihood, outputs, tolerances(outputs, tolerance))

    @staticmethod
    def outputs(outputs: np.ndarray) -> np.ndarray:
        """Return the network's outputs as the code reads them, float64 [samples, parameters]."""
        return outputs


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
