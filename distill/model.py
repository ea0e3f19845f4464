"""Trained students of sound."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import tensorflow as tf

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
from onepass import shipped
from onepass.draw import Draw
from onepass.foundation.arguments import check_unmasked, whole_number
from onepass.foundation.atomic_files import Arrays
from onepass.foundation.errors import UserError
from onepass.foundation.model_folder import assign_weights, read_stored_model
from onepass.foundation.model_spec import kind_of
from onepass.foundation.stored_config import check_config, stored_config
from onepass.trained import Trained
from wavenet import model as wavenet_model
from wavenet.features.conventions import MelConvention
from wavenet.features.frames_in_pieces import FramesInPieces, MappedFrames
from wavenet.features.mel import mel_of
from wavenet.presets import DataConfig
from wavenet.trained_speech import Request, batch_of, front_of, spec_of_speech

Frames = np.ndarray | FramesInPieces
OF_THE_TEACHER = ("teacher", "teacher_weights")  # entries of config.json about the teacher


@dataclasses.dataclass(frozen=True)
class StudentSampler:
    """A student and its engines, which draw waveforms at the model's level.

    Attributes:
      network: the student's network, with its weights.
      config: the configuration of the distillation.
      mel: the convention of the mel frames that it reads; None if it reads none.
    """

    network: ParallelWaveNet
    config: DistillConfig
    mel: MelConvention | None = None

    # No prefix: the noise of a recording is unknown.
    options: ClassVar = frozenset({"method", "temperature", "refine", "speaker"})
    takes_pieces: ClassVar = True  # whether frames may be `FramesInPieces`

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the engines.

        "numba" computes on this processor, in float32; "numba-bfloat16" multiplies in bfloat16, if
        the processor has AVX512-BF16; "tensorflow" computes on TensorFlow's device; "auto" chooses
        "numba" if there is no accelerator and `compute_dtype` is float32.
        """
        return get_args(Backend)

    def check_draw(self, draw: Draw) -> Draw:
        """Return a request; raise a UserError if its method is unknown or does not run here."""
        check_backend(draw.method)
        return draw

    def sample(self, draw: Draw) -> np.ndarray:
        """Return the requested waveforms, float32 [num, length]."""
        return np.concatenate(list(self._chunks(draw, WHOLE_SAMPLES, WHOLE_SAMPLES)), axis=1)

    def stream(self, draw: Draw, chunk: int | None) -> Iterator[np.ndarray]:
        """Return an iterator over parts; each refining pass delays them by a window of the mel."""
        samples = whole_number(CHUNK_SAMPLES if chunk is None else chunk, "chunk")
        return self._chunks(draw, samples, None)

    def _chunks(self, draw: Draw, samples: int, first: int | None) -> Iterator[np.ndarray]:
        frames, request = self._request(draw)
        passes = 0 if draw.refine is None else whole_number(draw.refine, "refine", least=0)
        refiner = self._refiner(frames, passes)
        if first is None:
            ahead = refiner.reach_frames * self.network.config.hop_samples if refiner else 0
            first = FIRST_SAMPLES + ahead
        chunks = stream(self.network, request, draw.method, samples, first)
        return self._refine_chunks(chunks, frames, refiner)

    def log_density(self, draw: Draw) -> np.ndarray:
        """Return the log density of unrefined sounds, float32 [num, length], in nats per unit."""
        (_, request), network = self._request(draw), self.network
        phase = tf.zeros([len(request.rows)], tf.float64)
        given, _ = condition_between(network, request, 0, request.num_samples, phase)
        noise = network.noise(request.seed, request.rows, 0, request.num_samples)
        drawn = network.draw(noise, given)
        return log_density(drawn, network.noise_kind).numpy()

    def as_draft(self, spec: dict[str, Any], model: Any) -> SoundDraft:
        """Return the student, with its model.json, as a draft for a trained WaveNet.

        Raises:
          UserError: the model is not a WaveNet, has no density, or differs from the student in
            sample rate, frames, gain or speakers.
        """
        return sound_draft(self.network, spec, model)

    def _request(self, draw: Draw) -> tuple[Frames | None, Request]:
        frames = None if draw.condition is None else self._check_frames(draw.condition)
        draw = dataclasses.replace(draw, condition=frames)
        return frames, batch_of(draw, self.network.config.hop_samples)

    def _refiner(self, frames: Frames | None, passes: int) -> Refiner | None:
        if not passes:
            return None
        if self.mel is None or frames is None:
            raise UserError("`refine` must be 0 for a student that reads no mel.")
        return Refiner(self.mel, passes)

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
            self.network.config.feature_channels,
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


def load(path: Path) -> Trained:
    """Load the model of a run directory or a model folder: a student or a WaveNet.

    The names in `shipped.FOLDERS` load the students that come with the package, unless there are
    folders of these names; `wavenet.model.load` handles the names of the shipped teachers.

    Raises:
      UserError: the path has no model, or the model cannot be read.
    """
    path = shipped.model_folder(path)
    if kind_of(path) != KIND:
        return wavenet_model.load(path)
    return _model(*read_stored_model(path, spec_of), path)


def load_student(path: Path) -> Trained:
    """Load the student of a run directory or a model folder."""
    model = load(path)
    if model.kind != KIND:
        raise UserError(f"{path} holds a {model.kind}, not a {KIND}.")
    return model


def teacher_of(model: Trained) -> Path:
    """Return the location of a student's teacher."""
    path = Path(str(model.spec.get("teacher")))
    if str(path) not in shipped.FOLDERS and not path.exists():
        raise UserError(f"This student was distilled from {path}, which is gone; name --teacher.")
    return path


def random_student(model: Trained) -> Trained:
    """Return a student of the same configuration with random weights."""
    network = ParallelWaveNet(model.config.student, model.config.seed, model.model.mel)
    return dataclasses.replace(model, model=dataclasses.replace(model.model, network=network))


def spec_of(stored: dict, path: Path) -> dict[str, Any]:
    """Return the content of model.json for a run's student, given that of its config.json."""
    config, data = _config(stored, path)
    spec = spec_of_speech(KIND, stored, data, config.student)
    return {**spec, **{name: stored[name] for name in OF_THE_TEACHER}}


def _model(stored: dict, weights: Arrays, spec: dict, path: Path) -> Trained:
    config, data = _config(stored, path)
    mel = data.mel(config.student.hop_samples)
    network = ParallelWaveNet(config.student, mel=mel)
    assign_weights(network, weights, path)
    return Trained(StudentSampler(network, config, mel), front_of(spec, data, network), spec)


def _config(stored: Any, path: Path) -> tuple[DistillConfig, DataConfig]:
    needed = {"preset", "gain_db", "speakers", "data", *OF_THE_TEACHER}
    return check_config(
        stored,
        path,
        (KIND,),
        needed,
        lambda stored: (
            stored_config(DistillConfig, stored),
            stored_config(DataConfig, stored.get("data", {})),
        ),
    )
