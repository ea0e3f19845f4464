"""Synthesis by a student, in one array or in chunks that pass on a state.

Seed and row determine a sound, as with a teacher. A chunk's condition depends on few frames on
either side, so the first chunk comes early, and memory does not grow with the length.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

import numpy as np
import tensorflow as tf

from distill.cpu import kernels, noise, recursion
from distill.cpu.engine import FlowEngine
from distill.student import Condition, ParallelWaveNet
from onepass.foundation.errors import UserError
from wavenet.sound_network import check_condition
from wavenet.trained_speech import Request

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
    _check(student, request)
    run = _runner(student, backend, len(request.rows))

    def parts() -> Iterator[np.ndarray]:
        phase_cycles = tf.zeros([len(request.rows)], tf.float64)
        bounds = _chunk_bounds(student, request.num_samples, chunk_samples, first_samples)
        for first, last in bounds:
            condition, phase_cycles = condition_between(student, request, first, last, phase_cycles)
            drawn = student.noise_of(noise.words(request.seed, request.rows, first, last - first))
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
    numbers = (tf.constant(number) for number in (count, before))
    return student.condition_graph(window, phase_cycles, *numbers, *who)


def _chunk_bounds(
    student: ParallelWaveNet, total: int, chunk: int, opening: int
) -> Iterator[tuple[int, int]]:
    hop = student.config.hop_samples
    first, length = 0, -(-opening // hop) * hop
    while first < total:
        last = min(total, first + length)
        yield first, last
        first, length = last, -(-chunk // hop) * hop


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
    read = made.read if made else _reader([v for flow in student.flows for v in flow.variables])
    weights = [np.asarray(weight) for weight in read()]
    if made is None or not all(map(np.array_equal, made.weights, weights)):
        copies = [each.copy() for each in weights]  # training writes into the memory of `weights`
        made = _MadeEngine(read, copies, FlowEngine(student.flows, narrow=narrow))
        engines[narrow] = made
    return made.engine


def _reader(variables: list[tf.Variable]) -> Callable[[], list[tf.Tensor]]:
    return tf.function(lambda: [variable.value() for variable in variables], autograph=False)


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
        wave, tail = recursion.wave(flowed.output, condition.prediction, tail, row_samples)
        return wave

    return run


def _tensorflow_runner(student: ParallelWaveNet, batch: int) -> Runner:
    pasts = student.initial_state(batch)

    def run(noise: tf.Tensor, condition: Condition) -> np.ndarray:
        nonlocal pasts
        flowed, pasts = student.advance_graph(noise, pasts, condition)
        return flowed.output.numpy().astype(np.float32)

    return run


def _check(student: ParallelWaveNet, request: Request) -> None:
    if request.frames is None:
        return
    covered = request.frames.shape[1] * student.config.hop_samples
    if covered < request.num_samples:
        raise ValueError(
            f"`frames` must cover {request.num_samples} samples, they cover {covered}."
        )
