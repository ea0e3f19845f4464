"""`StudentSampler`: draw sound in one pass, exactly by a draft, or refined to fit the mel.

Seed and row determine a sound, as with a teacher. A chunk's condition depends on few frames on
either side, so the first chunk comes early, and memory does not grow with the length.
"""

import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import tensorflow as tf

from distill.config import KIND, DistillConfig
from distill.cpu import kernels
from distill.cpu.engine import FlowEngine, noise_words
from distill.drafts import FlowDraft
from distill.losses.divergence import log_density
from distill.residual import Condition, Prediction
from distill.student import ParallelWaveNet
from onepass.foundation import model_folders
from onepass.foundation.model_folders import assign_weights, kind_of, read_stored_model
from onepass.foundation.rules import (
    UserError,
    check_config,
    check_unmasked,
    stored_config,
    whole_number,
)
from onepass.interface import Draw
from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import with_density
from onepass.networks.any_length import pad_time
from onepass.trained import Trained
from wavenet import model as wavenet_model
from wavenet.config import DataConfig, MelConvention
from wavenet.features.frames import FramesInPieces, Refiner, refine_chunks
from wavenet.front import Request, batch_of, front_of, spec_of_speech
from wavenet.network import check_condition

Backend = Literal["auto", "numba", "numba-bfloat16", "tensorflow"]
# A function from the next noise float32 [batch, time] and its condition to sound [batch, time].
Runner = Callable[[tf.Tensor, Condition], np.ndarray]
NARROW: Literal["numba-bfloat16"] = "numba-bfloat16"
CHUNK_SAMPLES = 32_000  # length of a chunk, rounded up to whole frames
WHOLE_SAMPLES = 160_000  # length of a chunk if the sound is returned in one array, to bound memory
FIRST_SAMPLES = 1600  # length of the first chunk, short so that the first sound comes early


class _MadeEngine(NamedTuple):
    read: Callable[[], list[tf.Tensor]]
    weights: list[np.ndarray]
    engine: FlowEngine


# Keys: the student, and whether the engine multiplies in bfloat16.
_ENGINES: weakref.WeakKeyDictionary[ParallelWaveNet, dict[bool, _MadeEngine]]
_ENGINES = weakref.WeakKeyDictionary()


def generate(student: ParallelWaveNet, request: Request, backend: Backend = "auto") -> np.ndarray:
    """Return the requested sounds, float32 [batch, num_samples] in [-1, 1]."""
    # No caller waits for the first chunk here, so it is as long as the others.
    chunks = stream(student, request, backend, WHOLE_SAMPLES, WHOLE_SAMPLES)
    return np.concatenate(list(chunks), axis=1)


def stream(
    student: ParallelWaveNet,
    request: Request,
    backend: str = "auto",
    chunk_samples: int = CHUNK_SAMPLES,
    first_samples: int = FIRST_SAMPLES,
) -> Iterator[np.ndarray]:
    """Return an iterator over the sounds of `generate` in chunks, [batch, about chunk_samples].

    The backend is one of `StudentSampler.methods`.
    """
    if request.frames is not None:
        wanted, covered = request.num_samples, request.frames.shape[1] * student.config.hop_samples
        if covered < wanted:
            raise ValueError(f"`frames` must cover {wanted} samples, they cover {covered}.")
    run = _runner(student, backend, len(request.rows))

    def parts() -> Iterator[np.ndarray]:
        phase_cycles = tf.zeros([len(request.rows)], tf.float64)
        hop, last, length = student.config.hop_samples, 0, first_samples
        while last < request.num_samples:
            first, last = last, min(request.num_samples, last + -(-length // hop) * hop)
            length = chunk_samples
            condition, phase_cycles = condition_between(student, request, first, last, phase_cycles)
            drawn = student.noise_of(noise_words(request.seed, request.rows, first, last - first))
            yield np.clip(run(drawn * request.temperature, condition), -1.0, 1.0)

    return parts()


def condition_between(
    student: ParallelWaveNet, request: Request, first: int, last: int, phase_cycles: tf.Tensor
) -> tuple[Condition, tf.Tensor | None]:
    """Return the `Condition` of the samples in [first, last), and the source's phase after them.

    `first` must be a multiple of the hop length; `phase_cycles` is the phase before it, float64
    [batch].
    """
    speaker, count = request.speaker, last - first
    if request.frames is None:
        return student.condition(None, speaker, count, phase_cycles)
    hop, side = student.config.hop_samples, student.side_frames
    frame, end = first // hop, -(-last // hop)
    before = min(frame, side)
    window = tf.constant(request.frames[:, frame - before : end + side], tf.float32)
    check_condition(student.config, window, speaker)
    who = [] if speaker is None else [tf.constant(speaker, tf.int32)]
    skipped = tf.constant(before)
    return student.condition_graph(window, phase_cycles, tf.constant(count), skipped, who)


def _runner(student: ParallelWaveNet, backend: str, batch: int) -> Runner:
    check_backend(backend)
    if backend == "auto":
        plain = student.config.compute_dtype == "float32"
        accelerated = bool(tf.config.list_physical_devices("GPU"))
        backend = "numba" if plain and not accelerated else "tensorflow"
    if backend == "tensorflow":
        return _tensorflow_runner(student, batch)
    return _cpu_runner(student, batch, narrow=backend == NARROW)


def check_backend(backend: str) -> None:
    """Raise UserError if `backend` is unknown, or if this processor lacks its instructions."""
    if backend not in get_args(Backend):
        known = ", ".join(get_args(Backend))
        raise UserError(f"`method` must be one of {known}, got {backend!r}.")
    if backend == NARROW and not kernels.IS_AVAILABLE:
        raise UserError(
            f"`method` {NARROW} needs a processor with AVX512-BF16, which this one lacks; numba "
            "runs here."
        )


def _engine(student: ParallelWaveNet, narrow: bool) -> FlowEngine:
    engines = _ENGINES.setdefault(student, {})
    made = engines.get(narrow)
    if made:  # finding a module's variables takes longer than reading them
        read = made.read
    else:
        variables = [variable for flow in student.flows for variable in flow.variables]
        read = tf.function(lambda: [each.value() for each in variables], autograph=False)
    weights = [np.asarray(weight) for weight in read()]
    if made is None or not all(map(np.array_equal, made.weights, weights)):
        copies = [each.copy() for each in weights]  # training writes into the memory of `weights`
        made = _MadeEngine(read, copies, FlowEngine(student.flows, narrow=narrow))
        engines[narrow] = made
    return made.engine


def _cpu_runner(student: ParallelWaveNet, batch: int, narrow: bool) -> Runner:
    engine = _engine(student, narrow)
    state, row_samples = engine.initial_state(batch), student.config.row_samples

    tail = np.zeros([batch, student.config.prediction_order], np.float32)

    def run(noise: tf.Tensor, condition: Condition) -> np.ndarray:
        nonlocal state, tail
        noise = np.asarray(condition.add_source(noise))
        flowed, state = engine.run(state, noise, condition.channels, condition.held)
        if condition.prediction is None:
            return flowed.output
        wave, tail = kernels.wave(flowed.output, condition.prediction, tail, row_samples)
        return wave

    return run


def _tensorflow_runner(student: ParallelWaveNet, batch: int) -> Runner:
    pasts = student.initial_state(batch)

    def run(noise: tf.Tensor, condition: Condition) -> np.ndarray:
        nonlocal pasts
        flowed, pasts = student.advance_graph(noise, pasts, condition)
        return flowed.output.numpy().astype(np.float32)

    return run


# The entries of model.json that must be equal for a model and its draft.
SAME = ("sample_rate_hz", "hop_samples", "gain_db", "features", "speakers")


class SoundDraft(FlowDraft):
    """An audio student as a draft, conditioned on frames, for blocks of whole `block_samples`."""

    def __init__(self, student: ParallelWaveNet, codec: Codec):
        super().__init__(student, codec, "own")
        self._student, config = student, student.config
        self._row_samples = config.row_samples if config.domain == "residual" else 1
        self.block_samples = math.lcm(config.bunch_samples, self._row_samples)

    def conditions(self, request: Request, length: int) -> Iterator[Condition]:
        """Yield the condition of every block of `length` samples of a request."""
        student, row = self._student, self._row_samples
        together, bunch = math.lcm(length, student.config.hop_samples), student.config.bunch_samples
        phase = tf.zeros([len(request.rows)], tf.float64)
        for first in range(0, request.num_samples, together):
            last = min(first + together, request.num_samples)
            whole, phase = condition_between(student, request, first, last, phase)
            for start in range(0, last - first, length):
                part = functools.partial(_part, start, length)
                prediction = whole.prediction and Prediction(
                    part(row, whole.prediction.coefficients), part(row, whole.prediction.log_gain)
                )
                channels, source = part(bunch, whole.channels), part(1, whole.source)
                yield Condition(channels, source, prediction, part(row, whole.held))


def _part(first: int, length: int, samples: int, values: tf.Tensor | None) -> Any:
    start, count = first // samples, length // samples
    return None if values is None else pad_time(values[:, start : start + count], count)


def sound_draft(student: ParallelWaveNet, spec: Mapping[str, Any], model: Any) -> SoundDraft:
    """Return a student of sound, with its model.json, as a draft for a trained WaveNet."""
    if getattr(model, "spec", {}).get("kind") != "wavenet":
        raise UserError(
            f"A student of sound drafts for a WaveNet as `load` returns it, not for a"
            f" {getattr(model, 'kind', type(model).__name__)}."
        )
    if with_density(model.network.likelihood) is None:
        raise UserError("A student drafts for a WaveNet with a density, this one has a softmax.")
    for name in SAME:
        expected, found = model.spec[name], spec[name]
        if expected != found:
            raise UserError(f"A draft needs the model's `{name}`, {expected}; it has {found}.")
    return SoundDraft(student, model.network.codec)


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
        if refiner is None or frames is None:
            return chunks
        return refine_chunks(chunks, frames, refiner)

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

    def _check_frames(self, condition: np.ndarray | FramesInPieces) -> Frames:
        """Return the frames, checked, as float32 [frames, channels] or in their pieces."""
        channels = self.network.config.feature_channels
        check_unmasked(condition, "condition")
        in_pieces = isinstance(condition, FramesInPieces)
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

    The names in `model_folders.FOLDERS` load the students that come with the package, unless there
    are folders of these names; `wavenet.model.load` handles the names of the shipped teachers.

    Raises:
      UserError: the path has no model, or the model cannot be read.
    """
    path = model_folders.model_folder(path)
    if kind_of(path) != KIND:
        return wavenet_model.load(path)
    stored, weights, spec = read_stored_model(path, spec_of)
    config, data = _config(stored, path)
    mel = data.mel(config.student.hop_samples)
    network = ParallelWaveNet(config.student, mel=mel)
    assign_weights(network, weights, path)
    return Trained(StudentSampler(network, config, mel), front_of(spec, data, network), spec)


def load_student(path: Path) -> Trained:
    """Load the student of a run directory or a model folder."""
    model = load(path)
    if model.kind != KIND:
        raise UserError(f"{path} holds a {model.kind}, not a {KIND}.")
    return model


def teacher_of(model: Trained) -> Path:
    """Return the location of a student's teacher."""
    path = Path(str(model.spec.get("teacher")))
    if str(path) not in model_folders.FOLDERS and not path.exists():
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


def _config(stored: Any, path: Path) -> tuple[DistillConfig, DataConfig]:
    needed = {"preset", "gain_db", "speakers", "data", *OF_THE_TEACHER}

    def read(stored: dict) -> tuple[DistillConfig, DataConfig]:
        data = stored_config(DataConfig, stored.get("data", {}))
        return stored_config(DistillConfig, stored), data

    return check_config(stored, path, (KIND,), needed, read)
