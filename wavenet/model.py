"""Trained WaveNets, which generate, score and compress waveforms."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from onepass.foundation import model_folders
from onepass.foundation.model_folders import assign_weights, read_stored_model
from onepass.foundation.rules import UserError, check_config, require, whole_number
from onepass.foundation.runtime import Compiled
from onepass.interface import Draw
from onepass.samplers import methods_of
from onepass.trained import Trained
from wavenet.adaptive_network import AdaptiveWaveNet
from wavenet.config import KIND, ComputeDtype, TrainConfig, config_from
from wavenet.density import Density
from wavenet.front import PassCount, SoundFront, batch_of, front_of, spec_of_speech
from wavenet.network import Network, WaveNet
from wavenet.samplers.generation import CHUNK_SAMPLES, SpeculativeSampler, stream
from wavenet.samplers.symbols import autoregressive
from wavenet.vocoder import VocoderWaveNet

if TYPE_CHECKING:
    from onepass.model import Autoregressive
    from wavenet.compression import Recordings


@dataclasses.dataclass(frozen=True)
class SoundSampler:
    """A WaveNet and its samplers, of waveforms at the model's level.

    Attributes:
      network: the network with its weights.
      config: the training configuration.
      passes: pass counts of the latest generation, for samplers that draw many samples per pass.
    """

    network: Network
    config: TrainConfig
    passes: PassCount = dataclasses.field(default_factory=PassCount, compare=False)

    options: ClassVar = frozenset(
        {"method", "weights", "temperature", "prefix", "speaker", "draft", "acceptance"}
    )
    takes_pieces: ClassVar = False  # whether frames may be `FramesInPieces`

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the samplers.

        "cached" runs the network's step on TensorFlow's device; "auto" runs it on the step machine,
        or does what "cached" does if there is an accelerator or the machine cannot run the step;
        "fixed-point" runs passes over many samples; "naive" evaluates the whole network for every
        sample; "speculative" checks what a draft proposes.
        """
        return (*methods_of(self.network, self.network.likelihood), "speculative")

    def check_draw(self, draw: Draw) -> Draw:
        """Return a request; raise UserError if its method is unknown or does not fit its draft."""
        if draw.method not in self.methods:
            known = ", ".join(self.methods)
            raise UserError(f"`method` must be one of {known}, got {draw.method!r}.")
        if (draw.method == "speculative") != (draw.draft is not None):
            raise UserError('`draft` must be given for `method="speculative"`, and for no other.')
        return draw

    def sample(self, draw: Draw) -> np.ndarray:
        """Return the requested waveforms, float32 [num, length]."""
        return np.concatenate(list(self.stream(draw, None)), 1)

    def stream(self, draw: Draw, chunk: int | None) -> Iterator[np.ndarray]:
        """Return an iterator over parts [num, up to `chunk`] of the waveforms."""
        samples = whole_number(CHUNK_SAMPLES if chunk is None else chunk, "chunk")
        begun = None if draw.prefix is None else self._levels(draw.prefix)
        request = batch_of(draw, self.network.config.hop_samples, begun)
        self.passes.clear()
        if draw.draft is None:
            drawn = stream(self.network, request, draw.method, samples, self.passes, draw.weights)
        else:
            is_float32 = draw.weights == "float32"
            require(is_float32, "weights", "float32 with a draft", draw.weights)
            make = functools.partial(SpeculativeSampler, self.network, draw.draft, draw.acceptance)
            sampler = self._speculative.once((id(draw.draft), draw.acceptance), make)
            drawn = sampler.stream(request, self.passes)
        if begun is not None:
            prefix = np.repeat(begun[None], len(request.rows), 0)
            parts = (prefix[:, i : i + samples] for i in range(0, len(begun), samples))
            drawn = itertools.chain(parts, drawn)
        return (self.network.codec.decode(levels).numpy() for levels in drawn)

    def log_prob(
        self,
        waveform: np.ndarray | list[np.ndarray],
        frames: Any,
        speaker: int | None,
        weights: str = "float32",
    ) -> np.ndarray:
        """Return the log-probability of every sample of a waveform, or of several, in nats."""
        if isinstance(waveform, list):
            rows = zip(waveform, frames, strict=True)
            return np.stack([self.log_prob(each, own, speaker, weights) for each, own in rows])
        return self._density.log_prob(self._levels(waveform), frames, speaker, weights)

    def files_of(self, front: SoundFront) -> "Recordings":
        """Return the format of compressed files; raise a UserError if the model cannot compress."""
        from wavenet.compression import Recordings

        return Recordings(self.network, front)

    @property
    def autoregressive(self) -> "Autoregressive":
        """The network as an `Autoregressive`, with `conditionals`, `log_prob`, `sample`, `stream`.

        Elements are samples in [-1, 1], float32 [num, time]; the condition is the result of
        `network.condition`, [num, time, channels].
        """
        return autoregressive(self.network)

    @functools.cached_property
    def _speculative(self) -> Compiled:
        return Compiled()

    @functools.cached_property
    def _density(self) -> Density:
        return Density(self.network)

    def _levels(self, waveform: np.ndarray) -> np.ndarray:
        return self.network.codec.encode(tf.constant(waveform, tf.float32)).numpy()


def load(path: Path, compute_dtype: ComputeDtype | None = None) -> Trained:
    """Load a model from a run directory or a model folder.

    The path may also name a shipped model such as "shipped-teacher", unless a folder has that name.
    Of a run, the best checkpoint provides averaged weights. `compute_dtype` is the type of the
    network's arithmetic; None: the same as in training. A path without a WaveNet that this version
    can read is a UserError.
    """
    path = model_folders.model_folder(path)
    stored, weights, spec = read_stored_model(path, _spec)
    config = _config(stored, path)
    if compute_dtype is not None:
        network_config = dataclasses.replace(config.network, compute_dtype=compute_dtype)
        config = dataclasses.replace(config, network=network_config)
    network = make_network(config)
    assign_weights(network, weights, path)
    return Trained(SoundSampler(network, config), front_of(spec, config.data, network), spec)


def _config(stored: Any, path: Path) -> TrainConfig:
    return check_config(stored, path, (KIND,), {"preset", "gain_db", "speakers"}, config_from)


def _spec(stored: dict, path: Path) -> dict[str, Any]:
    config = _config(stored, path)
    spec = spec_of_speech(KIND, stored, config.data, config.network)
    return {**spec, "levels": config.network.levels}


def make_network(config: TrainConfig) -> Network:
    """Return the untrained network of a configuration after `TrainConfig.resolve_settings`.

    It is an `AdaptiveWaveNet` with `prediction_windows`, a `VocoderWaveNet` with
    `conditioner_units`, which needs mel frames, else a `WaveNet`.
    """
    if config.network.prediction_windows:
        return AdaptiveWaveNet(config.network, config.seed)
    if not config.network.conditioner_units:
        return WaveNet(config.network, config.seed)
    mel = config.data.mel(config.network.hop_samples)
    if mel is None:
        raise UserError("`features` must hold mel for `conditioner_units`.")
    return VocoderWaveNet(config.network, mel, config.seed)
