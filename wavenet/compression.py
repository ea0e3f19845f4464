"""A lossless code for 16-bit sound by a WaveNet's exact conditionals, decoded by its cached step.

One parallel pass gives the distributions of a whole recording to the encoder. The decoder takes
them from the step of the cached sampler, sample by sample, and feeds back the decoded samples.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from compression import fields, verification
from compression.container import (
    VERSION,
    Container,
    check_decoded,
    checksum_of,
    digest_of,
    read_for,
)
from compression.forms import closed, form_of, narrowest_of, tolerances
from compression.stream import Decoder, Encoder, Layout, depth_of, odds_of
from compression.verification import Moved
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
        condition, narrowest = self._condition(len(levels), speaker), narrowest_of(tolerance)
        encoder = Encoder(Layout(self.depth, 1, 1, len(levels)))
        window, past = self._density.window_samples, self._density.past_samples
        for start in range(0, len(levels), window):
            first = max(0, start - past)
            part = slice(first, start + window)
            here = None if condition is None else condition[:, part]
            found = self._parameters(tf.constant(levels[None, part], tf.int32), here)
            own = levels[start : start + window]
            outputs = self.outputs(found.numpy()[0, start - first :].astype(np.float64))
            off = tolerances(outputs, tolerance)
            distribution = closed(self.network.likelihood, outputs, off, narrowest)
            encoder.add([odds_of(distribution, own, self.depth)], 0, len(own))
        return encoder.finish()

    def decode(
        self,
        stream: bytes,
        samples: int,
        speaker: int | None,
        narrowest: float | None,
        moved: Moved | None = None,
    ) -> np.ndarray:
        """Return the recording int32 [samples] of a stream.

        Args:
          stream: from `encode`.
          samples: of the recording.
          speaker: as for `encode`.
          narrowest: of `forms.closed`, as in the file.
          moved: changes the network's outputs; None: they are as they are.
        """
        decoder = Decoder(stream, Layout(self.depth, 1, 1, samples, self.levels))
        condition, levels = self._condition(samples, speaker), np.zeros(samples, np.int32)
        step, state = Step(self.network, self._sampler.rings), self._sampler.initial_state(1)
        past, queues = state.past, state.queues
        for start in range(0, samples, CHUNK_SAMPLES):
            count = min(CHUNK_SAMPLES, samples - start)
            here = None if condition is None else condition[:, start : start + count]
            gates = step.gate_offsets(here, 1, count)
            for t in range(count):
                found, queues = self._step(tf.constant(start + t), past, queues, gates[t])
                outputs = self.outputs(found.numpy().astype(np.float64))
                outputs = outputs if moved is None else moved(outputs)
                distribution = closed(self.network.likelihood, outputs, None, narrowest)
                levels[start + t] = decoder.levels(distribution, 1, 0, 0)[0]
                past = self._shift(past, tf.constant(levels[start + t : start + t + 1]))
        return levels

    def _one_step(self, position, past, queues, gates):
        return Step(self.network, self._sampler.rings)(position, past, queues, gates)

    def _condition(self, samples: int, speaker: int | None):
        if speaker is None:
            return None
        return self.network.condition(None, tf.constant([speaker]), samples)

    @staticmethod
    def outputs(outputs: np.ndarray) -> np.ndarray:
        """Return the network's outputs as the code reads them, float64 [samples, parameters]."""
        return outputs


def compress(
    codec: SoundCodec,
    recordings: list[np.ndarray],
    speaker: int | None,
    tolerance: float,
    verify: bool | None = None,
) -> bytes:
    """Return the file of recordings of levels, int32 [samples] each.

    Arguments and errors are as for `WaveNetModel.compress`.
    """
    if not recordings or not all(len(levels) for levels in recordings):
        raise UserError("There must be a recording, and a sample in each.")
    if not 0 <= tolerance <= 1e-3:
        raise UserError(f"The tolerance must be 0 to 0.001, got {tolerance:g}.")
    lengths = [len(levels) for levels in recordings]
    described: dict[str, Any] = {"lengths": lengths, "narrowest": narrowest_of(tolerance)}
    described |= {} if speaker is None else {"speaker": speaker}
    streams = [codec.encode(levels, speaker, tolerance) for levels in recordings]
    shape = (len(recordings), sum(lengths), 1, 1)
    checksum = checksum_of(np.concatenate(recordings).astype("<u2"))
    made = (digest(codec.network), codec.levels, checksum, shape, described, tuple(streams))
    data = Container("sound", *made, VERSION).to_bytes()
    if sum(lengths) <= verification.CHEAP_STEPS if verify is None else verify:
        moved = verification.moved_by(tolerance)
        verification.verify(lambda: decompress(codec, data, moved), tolerance)
    return data


def read(codec: SoundCodec, data: bytes) -> Container:
    """Return a file of this model's recordings, all fields of which are in range.

    Raises:
      UserError: the file is damaged, truncated or of another model.
    """
    found = read_for(data, "sound", digest(codec.network), codec.levels)
    count, samples, *rest = found.shape
    if rest != [1, 1] or not count or count != len(found.streams):
        fields.damaged("shape", "recordings, samples, 1, 1")
    lengths = fields.listed("lengths", found.description.get("lengths"), (count,))
    if sum(fields.whole("lengths", length, 1, samples) for length in lengths) != samples:
        fields.damaged("lengths", f"{samples} in all")
    if (speaker := found.description.get("speaker")) is not None:
        fields.whole("speaker", speaker, 0, max(codec.network.config.speakers, 1) - 1)
    if found.version > 1:
        fields.share("narrowest", found.description.get("narrowest"))
    return found


def decompress(codec: SoundCodec, data: bytes, moved: Moved | None = None) -> list[np.ndarray]:
    """Return the recordings of levels, int32 [samples] each, of a file.

    Args:
      codec: of the model.
      data: the file.
      moved: changes the network's outputs; None: they are as they are.

    Raises:
      UserError: the file is damaged, truncated or of another model.
    """
    found = read(codec, data)
    lengths, speaker = found.description["lengths"], found.description.get("speaker")
    narrowest = found.description["narrowest"] if found.version > 1 else None
    pairs = zip(found.streams, lengths, strict=True)
    recordings = [
        codec.decode(stream, samples, speaker, narrowest, moved) for stream, samples in pairs
    ]
    check_decoded(np.concatenate(recordings).astype("<u2"), found)
    return recordings


def digest(network: tf.Module) -> bytes:
    """Return the digest of a network's weights, 16 bytes."""
    named = zip(variable_names(network), network.trainable_variables, strict=True)
    return digest_of({name: variable.numpy() for name, variable in named})
