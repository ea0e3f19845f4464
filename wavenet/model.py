"""A trained WaveNet that generates, evaluates and compresses recordings."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from onepass.draw import Draw
from onepass.foundation.arguments import whole_number
from onepass.foundation.errors import UserError
from onepass.foundation.model_folder import assign_weights, stored_model
from onepass.foundation.stored_config import checked_config
from onepass.samplers import methods_of
from onepass.samplers.acceptance import Acceptance
from onepass.samplers.compiled import Compiled
from wavenet import shipped
from wavenet.config import ComputeDtype
from wavenet.data import audio
from wavenet.data.recorded_level import RecordedFrames, at_recorded_level, gain_of
from wavenet.density import Density
from wavenet.network_factory import make_network
from wavenet.presets import KIND, DataConfig, TrainConfig, config_from
from wavenet.samplers.generation import CHUNK_SAMPLES, stream
from wavenet.samplers.speculative import SpeculativeSampler
from wavenet.sound_network import Network
from wavenet.trained_speech import PassCount, TrainedSpeechModel, spec_of_speech

if TYPE_CHECKING:
    from onepass.model import Autoregressive
    from wavenet.compression import Recordings

SHIPPED = shipped.TEACHER


@dataclasses.dataclass(frozen=True)
class SpeechModel(TrainedSpeechModel):
    """A trained WaveNet with everything needed to generate audio.

    Attributes:
      network: the network with its weights.
      config: the training configuration.
      gain_db: gain applied to recordings before anything else, in dB.
      speakers: speaker names, in the order of their numbers.
      spec: the content of model.json.
      passes: pass counts of the latest generation, for samplers that draw many samples per pass.
      drafted: the speculative sampler that generates from a draft's proposals; None: a backend
        generates.
    """

    network: Network
    config: TrainConfig
    gain_db: float
    speakers: tuple[str, ...]
    spec: dict[str, Any]
    passes: PassCount = dataclasses.field(default_factory=PassCount, compare=False)
    drafted: SpeculativeSampler | None = dataclasses.field(default=None, compare=False)

    options = frozenset({"method", "temperature", "prefix", "speaker", "draft", "acceptance"})
    compresses: ClassVar = True

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the samplers: those of the processor or accelerator, and "speculative".

        "numba" runs on the CPU; "xla" runs on TensorFlow's device; "fixed-point" runs there in
        passes over many samples; "naive" evaluates the whole network for every sample; "auto" and
        "cached" choose "numba", or "xla" if there is an accelerator or no Numba implementation.
        """
        return (*methods_of(self.network, self.network.likelihood), "speculative")

    @property
    def data(self) -> DataConfig:
        """The data settings of the training configuration."""
        return self.config.data

    def _sample(self, draw: Draw) -> np.ndarray:
        return np.concatenate(list(self._stream(draw, None)), 1)

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[np.ndarray]:
        if draw.method not in self.methods:
            known = ", ".join(self.methods)
            raise UserError(f"`method` must be one of {known}, got {draw.method!r}.")
        if (draw.method == "speculative") != (draw.draft is not None):
            raise UserError('`draft` must be given for `method="speculative"`, and for no other.')
        if draw.draft is not None:
            model = self.drafted_by(draw.draft, draw.acceptance)
            return model._stream(dataclasses.replace(draw, method="auto", draft=None), chunk)
        samples = whole_number(CHUNK_SAMPLES if chunk is None else chunk, "chunk")
        draw = self.read_recording(draw)
        condition, begun = draw.condition, self._begun(draw)
        request = self._request(draw, condition, begun)
        self.passes.clear()
        if self.drafted is None:
            drawn = stream(self.network, request, draw.method, samples, self.passes)
        elif draw.method == "auto":
            drawn = self.drafted.stream(request, self.passes)
        else:
            raise UserError(f"`method` must be auto for a model with a draft, got {draw.method}.")
        if begun is not None:
            prefix = np.repeat(begun[None], len(request.rows), 0)
            parts = (prefix[:, i : i + samples] for i in range(0, len(begun), samples))
            drawn = itertools.chain(parts, drawn)
        return (self._sound(levels, condition) for levels in drawn)

    def drafted_by(self, draft: Any, acceptance: Acceptance = "coupling") -> "SpeechModel":
        """Return a copy of the model that samples speculatively, verifying a draft's proposals.

        Args:
          draft: a student with the same sample rate and frames.
          acceptance: "coupling" draws the same waveform as the other methods; "rejection" draws a
            different waveform from the same distribution in fewer passes.

        Raises:
          UserError: If the draft's sample rate or frames differ from the model's.
        """

        def make() -> tuple[Any, SpeechModel]:
            sampler = SpeculativeSampler(self.network, draft.as_draft(self), acceptance)
            model = dataclasses.replace(self, passes=PassCount(), drafted=sampler)
            return draft, model  # the reference to the draft prevents reuse of its id

        return self._draft_cache.once((id(draft), acceptance), make)[1]

    @functools.cached_property
    def _draft_cache(self) -> Compiled:
        """A cache of the models returned by `drafted_by`."""
        return Compiled()

    def log_prob(
        self,
        elements: np.ndarray,
        condition: Any = None,
        *,
        lengths: Any = None,
        speaker: str | None = None,
    ) -> np.ndarray:
        """See `Model.log_prob`; the result is [samples] for a waveform [samples].

        Args:
          elements: float32 [samples] at `sample_rate_hz`, at its stored level.
          condition: frames of the same recording from `frames(...)`, or None for an unconditional
            model.
          lengths: None; a waveform is scored whole.
          speaker: a speaker's name, for models with speakers.
        """
        self.check_options(lengths=lengths)
        waveform = audio.checked_waveform(elements)
        gain_db = condition.gain_db if isinstance(condition, RecordedFrames) else self.gain_db
        levels = self._levels(audio.amplify(waveform, gain_db))
        return self._density.log_prob(levels, condition, self.speaker_number(speaker))

    def compress(
        self,
        recordings: np.ndarray | list[np.ndarray],
        *,
        speaker: str | None = None,
        tolerance: float = 1e-5,
        verify: bool | None = None,
    ) -> bytes:
        """Compress recordings losslessly and return the content of the file.

        Args:
          recordings: int16 [samples] each, at `sample_rate_hz`, for a model with 65,536 levels; for
            fewer levels, the levels as uint8 or uint16. No gain is applied.
          speaker: a speaker's name, for models with speakers; it is stored in the file.
          tolerance: maximum relative difference of the network's outputs on the machine that
            decodes. Up to it decoding is exact; beyond it the decoder rejects the file.
          verify: whether to decode the file once with outputs perturbed by half the tolerance, and
            raise an error unless the recordings are restored; None: only for at most 20,000 samples
            in total, since every sample takes a step.

        Raises:
          UserError: If the model reads frames, the recordings do not fit the model, or the
            verification fails.
        """
        from onepass.compression.files import compress

        return compress(self.compressed, recordings, speaker, tolerance=tolerance, verify=verify)

    def decompress(self, data: bytes, *, max_elements: int | None = None) -> list[np.ndarray]:
        """Return the recordings in a file from `compress`, bit for bit.

        Args:
          data: the bytes of the file.
          max_elements: largest number of samples to decode; None: 1,024 for each byte of the file.

        Raises:
          UserError: If the file is damaged, truncated, from a different model, or holds more than
            `max_elements`.
        """
        from onepass.compression.files import decompress

        return decompress(self.compressed, data, max_elements=max_elements)

    @functools.cached_property
    def compressed(self) -> "Recordings":
        """The format of the model's compressed files.

        Raises:
          UserError: If the model cannot compress.
        """
        from wavenet.compression import Recordings

        return Recordings(self)

    @functools.cached_property
    def autoregressive(self) -> "Autoregressive":
        """The network as an `Autoregressive`, with `conditionals`, `log_prob`, `sample`, `stream`.

        Elements are samples in [-1, 1] after the model's gain, float32 [num, time]; the condition
        is the result of `network.condition`, [num, time, channels]. For the same seed it draws the
        same levels as `sample` at temperature 1.
        """
        from wavenet.samplers.symbols import autoregressive

        return autoregressive(self.network)

    @functools.cached_property
    def _density(self) -> Density:
        return Density(self.network)

    def _begun(self, draw: Draw) -> np.ndarray | None:
        """Return the levels of the prefix after applying the gain of the condition's recording."""
        if draw.prefix is None:
            return None
        waveform = audio.checked_waveform(draw.prefix, "prefix")
        return self._levels(audio.amplify(waveform, gain_of(draw.condition)))

    def _sound(self, levels: np.ndarray, condition: Any) -> np.ndarray:
        """Return the waveform of integer levels, at the level of the condition's recording."""
        return at_recorded_level(self.network.codec.decode(levels).numpy(), gain_of(condition))

    def _levels(self, waveform: np.ndarray) -> np.ndarray:
        return self.network.codec.encode(tf.constant(waveform, tf.float32)).numpy()


def load(path: Path, compute_dtype: ComputeDtype | None = None) -> SpeechModel:
    """Load a model from a run directory or a model folder.

    Args:
      path: a model folder; a run directory, whose best checkpoint provides averaged weights; or the
        name of a shipped model such as "shipped-teacher", unless a folder has that name.
      compute_dtype: type of the network's arithmetic; None: the same as in training.

    Raises:
      UserError: If there is no WaveNet at the path that this version can read.
    """
    path = shipped.model_folder(path)
    stored, weights, spec = stored_model(path, _spec)
    config = _config(stored, path)
    if compute_dtype is not None:
        network_config = dataclasses.replace(config.network, compute_dtype=compute_dtype)
        config = dataclasses.replace(config, network=network_config)
    network = make_network(config)
    assign_weights(network, weights, path)
    return SpeechModel(network, config, stored["gain_db"], tuple(stored["speakers"]), spec)


def _config(stored: Any, path: Path) -> TrainConfig:
    return checked_config(stored, path, (KIND,), {"preset", "gain_db", "speakers"}, config_from)


def _spec(stored: dict, path: Path) -> dict[str, Any]:
    config = _config(stored, path)
    spec = spec_of_speech(KIND, stored, config.data, config.network)
    return {**spec, "levels": config.network.levels}
