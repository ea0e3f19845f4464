"""A trained student with all it needs to be used: weights, features, level, speakers."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from distill import shipped
from distill.generation import CHUNK_SAMPLES, Backend, Request, generate, stream
from distill.presets import DistillConfig
from distill.student import ParallelWaveNet
from distill.training import KIND
from replicator.runs.atomic_files import Arrays
from replicator.runs.errors import UserError
from replicator.runs.model_folder import assign_weights, stored_model
from replicator.runs.model_spec import kind_of
from replicator.runs.stored_config import dataclass_from
from wavenet import model as wavenet_model
from wavenet.feature_extractor import FeatureExtraction
from wavenet.model import SpeechModel
from wavenet.presets import DataConfig

SHIPPED = {"shipped": shipped.student_folder, "shipped-student": shipped.student_folder}


@dataclasses.dataclass(frozen=True)
class StudentModel(FeatureExtraction):
    """A student ready to speak.

    network: the flows. config: what it was distilled as. data: what its teacher heard. gain_db:
    applied to recordings before anything else. speakers: names, in the order of their numbers.
    spec: what model.json says.
    """

    network: ParallelWaveNet
    config: DistillConfig
    data: DataConfig
    gain_db: float
    speakers: tuple[str, ...]
    spec: dict[str, Any]

    backends: ClassVar = get_args(Backend)
    primable: ClassVar = False  # the noise of a recording is not known

    @property
    def hop_samples(self) -> int:
        """Samples between two frames."""
        return self.config.student.hop_samples

    @property
    def conditional(self) -> bool:
        """Whether it needs frames."""
        return self.config.student.feature_channels > 0

    @property
    def known_speakers(self) -> tuple[str, ...]:
        """The names of the speakers that it can speak as; none for a model without speakers."""
        return self.speakers[: self.config.student.speakers]

    def generate(
        self,
        condition=None,
        *,
        seed: int = 0,
        num: int = 1,
        num_samples: int | None = None,
        speaker: str | None = None,
        temperature: float = 1.0,
        backend: Backend = "auto",
    ) -> np.ndarray:
        """Sounds, float32 [num, samples] in [-1, 1].

        Args:
          condition: frames [frames, channels] from `frames(...)`, or None for a model without.
          seed, num: sound n of a seed is the same whatever `num` is.
          num_samples: length; by default that of the condition.
          speaker: a name, for models with speakers.
          temperature: multiplies the noise; 1 samples the model.
          backend: see `distill.generation.stream`.

        Raises UserError for frames that are none of this model's.
        """
        request = self._request(condition, seed, num, num_samples, speaker, temperature)
        return generate(self.network, request, backend)

    def stream(
        self,
        condition=None,
        *,
        seed: int = 0,
        num: int = 1,
        num_samples: int | None = None,
        speaker: str | None = None,
        temperature: float = 1.0,
        backend: Backend = "auto",
        chunk_samples: int = CHUNK_SAMPLES,
    ) -> Iterator[np.ndarray]:
        """The same sounds in chunks float32 [num, about chunk_samples], as they are made."""
        request = self._request(condition, seed, num, num_samples, speaker, temperature)
        return stream(self.network, request, backend, chunk_samples)

    def _request(self, condition, seed, num, num_samples, speaker, temperature) -> Request:
        if condition is not None:
            condition = self._checked(condition)
        if num_samples is None:
            if condition is None:
                raise ValueError("`num_samples` must be given when there is no `condition`.")
            num_samples = len(condition) * self.hop_samples
        number = self.speaker_number(speaker)
        return Request(
            num_samples,
            seed,
            tuple(range(num)),
            None if condition is None else np.broadcast_to(condition, (num, *condition.shape)),
            None if number is None else np.full([num], number, np.int32),
            temperature,
        )

    def _checked(self, condition) -> np.ndarray:
        """The frames as float32 [frames, channels], or a UserError that says what is wrong."""
        frames, channels = np.asarray(condition), self.config.student.feature_channels
        if frames.ndim != 2 or frames.shape[1] != channels:
            shape = " x ".join(map(str, frames.shape))
            raise UserError(
                f"It reads frames of {channels} channels, [frames, {channels}], got {shape}."
            )
        if not len(frames):
            raise UserError("There is no frame to speak: the mel is empty.")
        if not np.isfinite(frames).all():
            first = int(np.argmax(~np.isfinite(frames).all(axis=1)))
            raise UserError(f"The frames hold a value that is no number (NaN), first in {first}.")
        return frames.astype(np.float32, copy=False)


def load(path: Path) -> SpeechModel | StudentModel:
    """The model of a run directory or a model folder: a student, or a WaveNet.

    "shipped" is the student that comes with the package, "shipped-teacher" its teacher, unless
    there are folders of these names.
    """
    path = Path(path)
    if str(path) in SHIPPED and not path.exists():
        path = SHIPPED[str(path)]()
    if kind_of(path) != KIND:
        return wavenet_model.load(path)
    return _model(*stored_model(path, spec_of), path)


def load_student(path: Path) -> StudentModel:
    """The student of a run directory or a model folder; UserError for any other model."""
    model = load(path)
    if not isinstance(model, StudentModel):
        raise UserError(f"{path} holds a {model.spec['kind']}, not a {KIND}.")
    return model


def teacher_of(model: StudentModel) -> Path:
    """Where the teacher of a student lies; UserError if it is gone."""
    path = Path(str(model.spec.get("teacher")))
    if str(path) != wavenet_model.SHIPPED and not path.exists():
        raise UserError(f"This student was distilled from {path}, which is gone; name --teacher.")
    return path


def untrained(model: StudentModel) -> StudentModel:
    """The same student before its first step, its conditioner not the teacher's yet."""
    mel = model.data.mel(model.hop_samples)
    network = ParallelWaveNet(model.config.student, model.config.seed, mel)
    return dataclasses.replace(model, network=network)


def spec_of(stored: dict, path: Path) -> dict[str, Any]:
    """What model.json says of a run's student, from its config.json."""
    config, data = _config(stored, path)
    hop = config.student.hop_samples
    mel, pitch = data.mel(hop), data.pitch(hop)
    return {
        "kind": KIND,
        "preset": stored["preset"],
        "sample_rate_hz": data.sample_rate_hz,
        "hop_samples": hop,
        "receptive_field_samples": config.student.receptive_field,
        "gain_db": stored["gain_db"],
        "features": {
            "mel": mel.to_dict() if mel else None,
            "f0": pitch.to_dict() if pitch else None,
        },
        "speakers": stored["speakers"],
        "teacher": stored["teacher"],
        "teacher_weights": stored["teacher_weights"],
    }


def _model(stored: dict, weights: Arrays, spec: dict, path: Path) -> StudentModel:
    config, data = _config(stored, path)
    network = ParallelWaveNet(config.student, mel=data.mel(config.student.hop_samples))
    assign_weights(network, weights, path)
    speakers = tuple(stored["speakers"])
    return StudentModel(network, config, data, stored["gain_db"], speakers, spec)


def _config(stored: dict, path: Path) -> tuple[DistillConfig, DataConfig]:
    """What config.json says of a student and its data, once every key is known to be there."""
    try:
        missing = {"preset", "gain_db", "speakers", "teacher", "teacher_weights"} - stored.keys()
        if missing:
            raise KeyError(min(missing))
        fields = {field.name: field.type for field in dataclasses.fields(DistillConfig)}
        values = {
            name: dataclass_from(kind, stored[name])
            if isinstance(stored[name], dict)
            else stored[name]
            for name, kind in fields.items()
        }
        return DistillConfig(**values), dataclass_from(DataConfig, stored["data"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"The configuration in {path} is not one of this version: {error}.") from (
            error
        )
