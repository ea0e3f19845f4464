"""A trained WaveNet with all it needs to be used: weights, features, level, speakers."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from autoregressive.samplers import methods_of
from autoregressive.samplers.acceptance import Acceptance
from autoregressive.samplers.compiled import Compiled
from foundation.errors import UserError
from foundation.model_folder import assign_weights, stored_model
from foundation.stored_config import checked_config
from wavenet import shipped
from wavenet.config import ComputeDtype
from wavenet.data import audio
from wavenet.data.recorded_level import RecordedFrames, at_recorded_level, gain_of
from wavenet.density import Density
from wavenet.network_factory import make_network
from wavenet.presets import DataConfig, TrainConfig
from wavenet.samplers.generation import CHUNK_SAMPLES, stream
from wavenet.samplers.speculative import SpeculativeSampler
from wavenet.sound_network import Network
from wavenet.trained_speech import PassCount, Request, TrainedSpeechModel, spec_of_speech
from wavenet.training import KIND, config_from

if TYPE_CHECKING:
    from autoregressive.model import Autoregressive
    from wavenet.compression import Recordings

SHIPPED = shipped.TEACHER


@dataclasses.dataclass(frozen=True)
class SpeechModel(TrainedSpeechModel):
    """A network ready to generate sound.

    Attributes:
      network: the network with its weights.
      config: its training configuration.
      gain_db: gain in dB that is applied to recordings before anything else.
      speakers: the names of its speakers, in the order of their numbers.
      spec: the content of model.json.
      passes: number of passes that made the newest sounds, for samplers that pass over many samples
        at once.
      drafted: the sampler that draws its sounds from a draft's proposals; None: a backend does.
    """

    network: Network
    config: TrainConfig
    gain_db: float
    speakers: tuple[str, ...]
    spec: dict[str, Any]
    passes: PassCount = dataclasses.field(default_factory=PassCount, compare=False)
    drafted: SpeculativeSampler | None = dataclasses.field(default=None, compare=False)

    compresses: ClassVar = True
    refinable: ClassVar = False

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that can draw its sounds."""
        known = methods_of(self.network, self.network.likelihood)
        return known if self.drafted is None else ("auto",)

    @property
    def primable(self) -> bool:
        """True if it can continue a recording."""
        return self.drafted is None

    @property
    def data(self) -> DataConfig:
        """The data of its training."""
        return self.config.data

    def generate(self, condition: Any = None, **options: Any) -> np.ndarray:
        """Return the sounds of `stream` as a whole, float32 [num, samples] in [-1, 1].

        Args:
          condition: as for `stream`.
          **options: the keyword arguments of `stream`.
        """
        return np.concatenate(list(self.stream(condition, **options)), 1)

    def stream(
        self,
        condition: Any = None,
        *,
        seed: int = 0,
        num: int = 1,
        num_samples: int | None = None,
        speaker: str | None = None,
        prime: np.ndarray | None = None,
        temperature: float | None = None,
        backend: str = "auto",
        chunk_samples: int = CHUNK_SAMPLES,
    ) -> Iterator[np.ndarray]:
        """Yield sounds in chunks float32 [num, up to chunk_samples], as they are made.

        Args:
          condition: frames [frames, channels], or None for a model that reads none. With those of
            `frames(...)` the sound has that recording's level; with any others, the model's.
          seed: the noise's seed, an integer in [0, 2^64).
          num: number of sounds; sound n of a seed does not depend on it.
          num_samples: length of each sound in samples; None: that of the condition.
          speaker: a speaker's name, for models with speakers.
          prime: float32 [samples] to continue, at the level of the sound; the condition covers it
            too.
          temperature: 1 samples the model; less comes closer to its mode. None: that of `spec`, or
            1.
          backend: "numba" runs on this processor, "xla" on TensorFlow's device, "fixed-point"
            there, in passes over many samples, "naive" evaluates the whole network for every
            sample; "auto" and "cached" take numba, or xla where there is an accelerator or no
            Numba loop.
          chunk_samples: length of a chunk, in samples.

        Raises:
          UserError: there is no such backend, or a prime is given to a model with a draft.
        """
        given = (condition, seed, num, num_samples, speaker, temperature)
        request = self._request(*given, self._primed(prime, condition))
        for levels in self._drawn(request, backend, chunk_samples):
            yield self._sound(levels, condition)

    def _drawn(self, request: Request, backend: str, chunk_samples: int) -> Iterator[np.ndarray]:
        self.passes.clear()
        if self.drafted is not None:
            if backend != "auto":
                raise UserError(f"`backend` must be auto for drafts, got {backend}.")
            return self.drafted.stream(request, self.passes)
        return stream(self.network, request, backend, chunk_samples, self.passes)

    def sample(
        self,
        num: int,
        length: int | None,
        seed: int,
        condition: Any = None,
        *,
        method: str = "auto",
        draft: Any = None,
        acceptance: Acceptance = "coupling",
        **options: Any,
    ) -> np.ndarray:
        """Return sounds, float32 [num, length], the same as `generate` for the same seed.

        Args:
          num: number of sounds.
          length: length of each sound, in samples; None: that of the condition.
          seed: the noise's seed, an integer in [0, 2^64).
          condition: frames [frames, channels], or None for a model that reads none.
          method: a backend of `generate`, "cached", which is the one for this machine, or
            "speculative", passes over blocks that `draft` proposes.
          draft: for "speculative": a student with the same rate and frames.
          acceptance: for "speculative": "coupling" draws the sound of the other methods;
            "rejection" draws a different one from the same distribution, at temperature 1, in fewer
            passes.
          options: further arguments of `generate`.

        Raises:
          UserError: the draft is missing, or its rate or frames are not the model's.
        """
        known = (*self.backends, "speculative")
        if method not in known:
            raise UserError(f"`method` must be one of {', '.join(known)}, got {method!r}.")
        if (method == "speculative") != (draft is not None):
            raise UserError('`draft` must be given for `method="speculative"`, and for no other.')
        if draft is not None:
            return self.drafted_by(draft, acceptance).sample(
                num, length, seed, condition, **options
            )
        return super().sample(num, length, seed, condition, backend=method, **options)

    def drafted_by(self, draft: Any, acceptance: Acceptance = "coupling") -> "SpeechModel":
        """Return the model with its sounds drawn from a draft's proposals.

        Args:
          draft: a student with the same rate and frames.
          acceptance: "coupling" draws the sound of the other methods, "rejection" a different one
            from the same distribution in fewer passes.

        Raises:
          UserError: the draft's rate or frames are not the model's.
        """

        def make() -> tuple[Any, SpeechModel]:
            sampler = SpeculativeSampler(self.network, draft.as_draft(self), acceptance)
            model = dataclasses.replace(self, passes=PassCount(), drafted=sampler)
            return draft, model  # which keeps the draft's id its own

        return self._drafted.once((id(draft), acceptance), make)[1]

    @functools.cached_property
    def _drafted(self) -> Compiled:
        """Models with drafts, compiled once each."""
        return Compiled()

    def log_prob(
        self, waveform: np.ndarray, condition: Any = None, *, speaker: str | None = None
    ) -> np.ndarray:
        """Return each sample's exact log-probability given those before it, [samples], in nats.

        Args:
          waveform: float32 [samples] at `sample_rate_hz` and at its stored level.
          condition: frames of the same recording from `frames(...)`, or None for a model that reads
            none.
          speaker: a speaker's name, for models with speakers.

        Raises:
          UserError: the model does not know the speaker.
          ValueError: the waveform is not [samples], has whole numbers, or is not finite.
        """
        waveform = np.asarray(waveform)
        if waveform.ndim != 1 or waveform.dtype.kind != "f" or not np.all(np.isfinite(waveform)):
            raise ValueError(
                "`waveform` must be finite floating-point samples in [-1, 1], [samples], got "
                f"{waveform.dtype} {list(waveform.shape)}."
            )
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
        """Return a file from which `decompress` restores exactly these recordings.

        Args:
          recordings: int16 [samples] each, at `sample_rate_hz`, for a model of 65,536 levels; for
            fewer levels, the levels as uint8 or uint16. They are compressed at their own loudness.
          speaker: a speaker's name, for models with speakers; it is stored in the file.
          tolerance: relative difference that the network's outputs may have on the processor that
            decodes. Below it decoding is exact; above it the file is refused there.
          verify: decode the file again, with outputs off by half the tolerance, and refuse to
            return one that does not give these recordings back; None: if they have at most 20,000
            samples in all, since every sample takes a step.

        Raises:
          UserError: the model reads frames, the recordings do not fit it, or the file failed
            `verify`.
        """
        from compression.files import compress

        return compress(self.compressed, recordings, speaker, tolerance=tolerance, verify=verify)

    def decompress(self, data: bytes) -> list[np.ndarray]:
        """Return the recordings in a file from `compress`, exactly as they were passed to it.

        Raises:
          UserError: the file is damaged, truncated, or was made by a different model.
        """
        from compression.files import decompress

        return decompress(self.compressed, data)

    @functools.cached_property
    def compressed(self) -> "Recordings":
        """The format of its compressed files; raises UserError if the model cannot compress."""
        from wavenet.compression import Recordings

        return Recordings(self)

    @functools.cached_property
    def autoregressive(self) -> "Autoregressive":
        """The network as an `Autoregressive`: `conditionals`, `log_prob`, `sample`, `stream`.

        Its elements are samples in [-1, 1] after the model's gain, float32 [num, time]; its
        condition is the result of `network.condition`, [num, time, channels]. A seed gives the
        levels that `generate` gives at temperature 1.
        """
        from wavenet.samplers.symbols import autoregressive

        return autoregressive(self.network)

    @functools.cached_property
    def _density(self) -> Density:
        return Density(self.network)

    def _primed(self, prime: np.ndarray | None, condition: Any) -> np.ndarray | None:
        """Return the prime's integer levels, after the gain of the condition's recording."""
        return None if prime is None else self._levels(audio.amplify(prime, gain_of(condition)))

    def _sound(self, levels: np.ndarray, condition: Any) -> np.ndarray:
        """Return the sound of integer levels, as loud as the condition's recording."""
        return at_recorded_level(self.network.codec.decode(levels).numpy(), gain_of(condition))

    def _levels(self, waveform: np.ndarray) -> np.ndarray:
        return self.network.codec.encode(tf.constant(waveform, tf.float32)).numpy()


def load(path: Path, compute_dtype: ComputeDtype | None = None) -> SpeechModel:
    """Load the model of a run directory (average weights of its best checkpoint) or a model folder.

    Args:
      path: the run directory or model folder; "shipped-teacher" is the model that comes with the
        package, unless a folder has this name.
      compute_dtype: type of the arithmetic; None: as in training.
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
