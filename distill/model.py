"""A trained student with everything needed to use it: weights, features, level, speakers."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import tensorflow as tf

from distill import shipped
from distill.generation import (
    CHUNK_SAMPLES,
    FIRST_SAMPLES,
    WHOLE_SAMPLES,
    Backend,
    check_backend,
    condition_between,
    stream,
)
from distill.losses.kl_divergence import log_density
from distill.presets import KIND, DistillConfig
from distill.refinement import Refiner, refine_chunks
from distill.sound_drafts import SoundDraft, sound_draft
from distill.student import ParallelWaveNet
from distill.teacher import load_teacher
from onepass.draw import Draw
from onepass.foundation.arguments import check_unmasked, whole_number
from onepass.foundation.atomic_files import Arrays
from onepass.foundation.errors import UserError
from onepass.foundation.model_folder import assign_weights, stored_model
from onepass.foundation.model_spec import kind_of
from onepass.foundation.stored_config import checked_config, stored_config
from wavenet import model as wavenet_model
from wavenet import shipped as teachers
from wavenet.data.recorded_level import at_recorded_level, gain_of, is_recorded
from wavenet.features.frames_in_pieces import FramesInPieces, MappedFrames
from wavenet.features.mel import mel_of
from wavenet.model import SpeechModel
from wavenet.presets import DataConfig
from wavenet.trained_speech import TrainedSpeechModel, spec_of_speech

Frames = np.ndarray | FramesInPieces
OF_THE_TEACHER = ("teacher", "teacher_weights")  # entries of config.json about the teacher


@dataclasses.dataclass(frozen=True)
class StudentModel(TrainedSpeechModel):
    """A student that is ready to synthesise.

    Attributes:
      network: the student's network, with its weights.
      config: the configuration of the distillation.
      data: the data configuration of the teacher's training.
      gain_db: gain in dB that is applied to recordings before anything else.
      speakers: names of the speakers, in the order of their numbers.
      spec: the content of model.json.
    """

    network: ParallelWaveNet
    config: DistillConfig
    data: DataConfig
    gain_db: float
    speakers: tuple[str, ...]
    spec: dict[str, Any]

    # No prefix: the noise of a recording is unknown.
    options = frozenset({"method", "temperature", "refine", "speaker"})
    takes_pieces: ClassVar = True
    drafts: ClassVar = True

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the engines.

        "numba" computes on this processor, in float32; "numba-bfloat16" multiplies in bfloat16, if
        the processor has AVX512-BF16; "tensorflow" computes on TensorFlow's device; "auto" chooses
        "numba" if there is no accelerator and `compute_dtype` is float32.
        """
        return get_args(Backend)

    def _sample(self, draw: Draw) -> np.ndarray:
        return np.concatenate(list(self._chunks(draw, WHOLE_SAMPLES, WHOLE_SAMPLES)), axis=1)

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[np.ndarray]:
        """See `Model.stream`; each refining pass delays the parts by one window of the mel."""
        samples = whole_number(CHUNK_SAMPLES if chunk is None else chunk, "chunk")
        return self._chunks(draw, samples, None)

    def _chunks(self, draw: Draw, samples: int, first: int | None) -> Iterator[np.ndarray]:
        """Return the sounds in parts; None as the length of the first: short, with look-ahead."""
        draw = self.read_recording(draw)
        condition = draw.condition
        frames = None if condition is None else self._check_frames(condition)
        request = self._request(draw, frames)
        refiner = self._refiner(frames, self._passes(condition, draw.refine))
        check_backend(draw.method)
        if first is None:
            ahead = 0 if refiner is None else refiner.reach_frames * self.hop_samples
            first = FIRST_SAMPLES + ahead
        chunks = stream(self.network, request, draw.method, samples, first)
        chunks = self._refine_chunks(chunks, frames, refiner)
        return (at_recorded_level(chunk, gain_of(condition)) for chunk in chunks)

    def log_density(
        self,
        num: int,
        length: int,
        seed: int,
        condition: Any = None,
        *,
        speaker: str | None = None,
    ) -> np.ndarray:
        """Return the log density of the sounds that `sample` draws at temperature 1.

        It is float32 [num, length], in nats per unit, for unrefined sounds at the model's level.

        Args:
          num: number of sounds.
          length: number of samples of each sound.
          seed: seed of the noise, an integer in [0, 2^64).
          condition: frames [frames, channels], or None for an unconditional model.
          speaker: name of the speaker, for models with speakers.
        """
        frames, network = None if condition is None else self._check_frames(condition), self.network
        draw = Draw(num, length, seed, speaker=speaker, temperature=1.0)
        request = self._request(draw, frames)
        phase = tf.zeros([len(request.rows)], tf.float64)
        given, _ = condition_between(network, request, 0, request.num_samples, phase)
        noise = network.noise(request.seed, request.rows, 0, request.num_samples)
        drawn = network.draw(noise, given)
        return log_density(drawn, network.noise_kind).numpy()

    def as_draft(self, model: Any) -> SoundDraft:
        """Return the student as a draft for a WaveNet's `sample(method="speculative")`.

        Raises:
          UserError: the model is not a WaveNet, has no density, or differs from the student in
            sample rate, frames, gain or speakers.
        """
        return sound_draft(self, model)

    def _passes(self, condition: np.ndarray | FramesInPieces | None, refine: int | None) -> int:
        if refine is not None:
            return whole_number(refine, "refine", least=0)
        return int(self.spec.get("refine", 0)) if is_recorded(condition) else 0

    def _refiner(self, frames: Frames | None, passes: int) -> Refiner | None:
        convention = self.data.mel(self.hop_samples)
        if not passes:
            return None
        if convention is None or frames is None:
            raise UserError("`refine` must be 0 for a student that reads no mel.")
        return Refiner(convention, passes)

    def _refine_chunks(
        self, chunks: Iterator[np.ndarray], frames: Frames | None, refiner: Refiner | None
    ) -> Iterator[np.ndarray]:
        if refiner is None or frames is None:
            return chunks
        convention = refiner.convention

        def mel(part: np.ndarray) -> np.ndarray:
            return mel_of(part[:, : convention.bands], convention)

        if isinstance(frames, FramesInPieces):
            return refine_chunks(chunks, MappedFrames(frames, mel), refiner)
        return refine_chunks(chunks, mel(frames), refiner)

    def _check_frames(self, condition: np.ndarray | FramesInPieces) -> Frames:
        """Check the frames, and return them as float32 [frames, channels] or in their pieces.

        Raises:
          UserError: the frames do not fit the model; the message gives the reason.
        """
        in_pieces, channels = (
            isinstance(condition, FramesInPieces),
            self.config.student.feature_channels,
        )
        check_unmasked(condition, "condition")
        frames = condition if in_pieces else np.asarray(condition)
        if frames.ndim != 2 or frames.shape[1] != channels:
            shape = " x ".join(map(str, frames.shape))
            raise UserError(
                f"The model reads frames of {channels} channels, [frames, {channels}], got {shape}."
            )
        if not len(frames):
            raise UserError("The mel is empty: it has no frames.")
        if isinstance(frames, FramesInPieces):
            return frames
        if not np.isfinite(frames).all():
            first = int(np.argmax(~np.isfinite(frames).all(axis=1)))
            raise UserError(f"The frames contain NaN or infinity, first in frame {first}.")
        return frames.astype(np.float32, copy=False)


def load(path: Path) -> SpeechModel | StudentModel:
    """Load the model of a run directory or a model folder: a student or a WaveNet.

    The names in `shipped.FOLDERS` load the students that come with the package, unless there are
    folders of these names; `wavenet.model.load` handles the names of the shipped teachers.

    Raises:
      UserError: the path has no model, or the model cannot be read.
    """
    path = shipped.model_folder(path)
    if kind_of(path) != KIND:
        return wavenet_model.load(path)
    return _model(*stored_model(path, spec_of), path)


def load_student(path: Path) -> StudentModel:
    """Load the student of a run directory or a model folder.

    Raises:
      UserError: the folder has a model of a different kind.
    """
    model: Any = load(path)
    if model.kind != KIND:
        raise UserError(f"{path} holds a {model.kind}, not a {KIND}.")
    found: StudentModel = model
    return found


def load_speculative(path: Path, draft: Path) -> SpeechModel:
    """Load the teacher at `path`, with the student at `draft` as its draft."""
    return load_teacher(path).drafted_by(load_student(draft), "rejection")


def teacher_of(model: StudentModel) -> Path:
    """Return the location of a student's teacher.

    Raises:
      UserError: the teacher no longer exists there.
    """
    path = Path(str(model.spec.get("teacher")))
    if str(path) not in teachers.FOLDERS and not path.exists():
        raise UserError(f"This student was distilled from {path}, which is gone; name --teacher.")
    return path


def random_student(model: StudentModel) -> StudentModel:
    """Return a student of the same configuration with random weights."""
    mel = model.data.mel(model.hop_samples)
    network = ParallelWaveNet(model.config.student, model.config.seed, mel)
    return dataclasses.replace(model, network=network)


def spec_of(stored: dict, path: Path) -> dict[str, Any]:
    """Return the content of model.json for a run's student, given that of its config.json."""
    config, data = _config(stored, path)
    spec = spec_of_speech(KIND, stored, data, config.student)
    return {**spec, **{name: stored[name] for name in OF_THE_TEACHER}}


def _model(stored: dict, weights: Arrays, spec: dict, path: Path) -> StudentModel:
    config, data = _config(stored, path)
    network = ParallelWaveNet(config.student, mel=data.mel(config.student.hop_samples))
    assign_weights(network, weights, path)
    speakers = tuple(stored["speakers"])
    return StudentModel(network, config, data, stored["gain_db"], speakers, spec)


def _config(stored: Any, path: Path) -> tuple[DistillConfig, DataConfig]:
    needed = {"preset", "gain_db", "speakers", "data", *OF_THE_TEACHER}
    return checked_config(
        stored,
        path,
        (KIND,),
        needed,
        lambda stored: (
            stored_config(DistillConfig, stored),
            stored_config(DataConfig, stored.get("data", {})),
        ),
    )
