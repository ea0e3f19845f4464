"""Students against their teacher, TensorFlow's own operations and the machine's matrix products.

Sizes: the paper's student (van den Oord et al. 2017, arXiv 1711.10433), that of the residual's
domain, whose parts are timed too, and one that refines a draft. Weights and
inputs are random: the work does not depend on them.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from distill.config import RECENT, StudentConfig
from distill.cpu.engine import FlowEngine
from distill.generation import Request, generate, stream
from distill.presets import PRESETS
from distill.student import Condition, ParallelWaveNet
from onepass.bench.audio.student_parts import parts
from onepass.bench.report import Measure, Measures, Row
from wavenet.features import MelConvention
from wavenet.presets import PRESETS as TEACHERS

_VOCODER = dataclasses.replace(TEACHERS["wavenet-vocoder-16k"].config.network, feature_channels=80)
STUDENTS = {
    "paper": StudentConfig(flows=(10, 10, 10, 30), filter_width=3, residual_channels=64,
                           gate_channels=64, feature_channels=80, condition_channels=80,
                           upsample_factors=(16, 15), sample_rate_hz=24_000),
    "residual-16k": dataclasses.replace(
        PRESETS["student-residual-16k"].config.student, feature_channels=80,
        upsample_factors=_VOCODER.upsample_factors, frame_width=_VOCODER.frame_width,
        prediction_order=_VOCODER.prediction_order, subframes=_VOCODER.subframes,
        conditioner_units=_VOCODER.conditioner_units,
        condition_channels=_VOCODER.condition_channels),
    "draft-16k": StudentConfig(flows=(5, 5, 10), filter_width=2, front_width=16,
                               feature_channels=80, condition_channels=32,
                               upsample_factors=(10, 20), draft_passes=12, initial_scale=0.003,
                               sample_rate_hz=16_000),
}  # fmt: skip
TEACHER = "p"  # the network of onepass/bench/audio/command.py that a student takes the place of
PEAK = "matrix product"
SIDE = 2048  # of the square matrices of the peak
PRODUCTS = 4


def measures_of(
    name: str, config: StudentConfig, seconds: tuple[float, ...], batches: tuple[int, ...]
) -> Measures:
    """A row and a function to measure it for all that is said of one student.

    seconds: lengths of a sound. The peak is measured beside every student, as it may drift.
    """
    measures = [(Row(PEAK, name, 1, "GFLOP/s"), peak_gflops)]
    mel = MelConvention(config.sample_rate_hz, config.hop_samples, bands=config.feature_channels)
    student = ParallelWaveNet(config, mel=mel)
    for batch in batches:
        for length in seconds:
            measures += _measures_of_sound(name, student, length, batch)
    return measures


def _measures_of_sound(
    name: str, student: ParallelWaveNet, seconds: float, batch: int
) -> Iterator[tuple[Row, Measure]]:
    samples = max(1, round(seconds * student.config.sample_rate_hz))
    flows, whole, theirs = (
        f"{what}, {seconds:g} s" for what in ("flows", "end to end", "TensorFlow flows")
    )
    speed = Row(flows, name, batch, "samples/s", "naive", TEACHER)
    yield speed, functools.partial(flow_speed, student, samples, batch)
    for against, size in (("Numba cached", TEACHER), (theirs, None)):
        yield Row(flows, name, batch, "samples/s", against, size), _latest(speed)
    gigaflops = flops_per_sample(student.config) / 1e9
    yield Row(flows, name, batch, "GFLOP/s", PEAK), _latest(speed, lambda value: value * gigaflops)
    yield _real_time(speed, student)
    row = Row(theirs, name, batch, "samples/s")
    yield row, functools.partial(tensorflow_speed, student, samples, batch)
    row = Row(whole, name, batch, "samples/s", flows)
    yield row, functools.partial(whole_speed, student, samples, batch)
    yield _real_time(row, student)
    row = Row(f"first chunk, {seconds:g} s", name, batch, "s")
    yield row, functools.partial(first_chunk_seconds, student, samples, batch)
    if student.residual is not None:
        for part, measure in parts(student, samples, batch).items():
            row = Row(f"{part}, {seconds:g} s", name, batch, "s/s")
            yield row, functools.partial(_per_second, measure, batch * seconds)


def _per_second(measure: Measure, seconds: float) -> float:
    return measure() / seconds


def _real_time(speed: Row, student: ParallelWaveNet) -> tuple[Row, Measure]:
    """Seconds of computing for a second of sound, the sounds of a batch one after another."""
    rate_hz = student.config.sample_rate_hz
    row = Row(speed.what, speed.size, speed.batch, "s/s")
    return row, _latest(speed, lambda value: rate_hz / value)


def _latest(row: Row, convert: Callable[[float], float] = float) -> Measure:
    """A measure that reads what was just measured for the row, and measures nothing itself."""
    return lambda: convert(row.values[-1]) if row.values else math.nan


def flops_per_sample(config: StudentConfig) -> int:
    """Additions and multiplications in a student's matrix products, for one sample of sound.

    With R residual and G gate channels, width k, C channels of condition and F past samples:

        a layer    2 (k R + C) 2 G + 2 G R
        a flow     2 F R + 2 R R + 2 R 2      (front and the two layers of the head)

    With bunches of B samples, layers and front run once for B samples, and the gates of each
    sample's head cost 2 (R + 8) 2 R. Gates, biases, noise and the conditioner are left out.
    """
    R, G, C = config.residual_channels, config.gate_channels, config.gate_inputs
    B = config.bunch_samples
    layer = 2 * (config.filter_width * R + C) * 2 * G + 2 * G * R
    head = 2 * R * R + 2 * R * 2 + (2 * (R + RECENT) * 2 * R if B > 1 else 0)
    bunch = sum(config.flows) * layer + len(config.flows) * 2 * config.front_width * R
    return bunch // B + len(config.flows) * head


def peak_gflops() -> float:
    """GFLOP/s of TensorFlow's float32 product of two square matrices, on all cores."""
    factor = _matrix(SIDE)
    start = time.perf_counter()
    for _ in range(PRODUCTS):
        product = tf.matmul(factor, factor)
    product.numpy()
    return PRODUCTS * 2 * SIDE**3 / (time.perf_counter() - start) / 1e9


def flow_speed(student: ParallelWaveNet, samples: int, batch: int) -> float:
    """Samples a second of the compiled flows alone, of all rows together, on all cores."""
    noise, condition = _inputs(student, samples, batch)
    engine = _engine(student)
    state = engine.initial_state(batch)
    start = time.perf_counter()
    engine.run(state, noise, condition)
    return batch * samples / (time.perf_counter() - start)


def tensorflow_speed(student: ParallelWaveNet, samples: int, batch: int) -> float:
    """Samples a second of the same flows as TensorFlow runs them."""
    noise, condition = (tf.constant(array) for array in _inputs(student, samples, batch))
    pasts = student.empty_pasts(batch)
    start = time.perf_counter()
    flowed, _ = _chunk(student)(noise, condition, pasts)
    flowed.output.numpy()
    return batch * samples / (time.perf_counter() - start)


def whole_speed(student: ParallelWaveNet, samples: int, batch: int) -> float:
    """Samples a second from frames to sound: noise, conditioner, draft, flows."""
    request = _request(student, samples, batch)
    start = time.perf_counter()
    generate(student, request, "numba")
    return batch * samples / (time.perf_counter() - start)


def first_chunk_seconds(student: ParallelWaveNet, samples: int, batch: int) -> float:
    """Seconds from the frames to a stream's first chunk, a tenth of a second of sound."""
    request = _request(student, samples, batch)
    start = time.perf_counter()
    next(stream(student, request, "numba"))
    return time.perf_counter() - start


def _request(student: ParallelWaveNet, samples: int, batch: int) -> Request:
    frames = -(-samples // student.config.hop_samples)
    shape = (batch, frames, student.config.feature_channels)
    given = np.random.default_rng(0).random(shape, np.float32)
    return Request(samples, rows=tuple(range(batch)), frames=given)


def _inputs(student: ParallelWaveNet, samples: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise [batch, samples] and a condition [batch, samples, channels], float32."""
    # Not zeros: a processor draws less power on them, and may run faster.
    rng = np.random.default_rng(0)
    shape = (batch, samples, student.config.gate_inputs)
    return rng.logistic(size=shape[:2]).astype(np.float32), rng.random(shape, np.float32)


@functools.cache
def _engine(student: ParallelWaveNet) -> FlowEngine:
    return FlowEngine(student.flows)


@functools.cache
def _chunk(student: ParallelWaveNet):
    shapes = [
        tf.TensorSpec([None, None]),
        tf.TensorSpec([None, None, student.config.gate_inputs]),
        tf.nest.map_structure(
            lambda past: tf.TensorSpec([None, *past.shape[1:]]), student.empty_pasts(1)
        ),
    ]

    def chunk(noise, channels, pasts):
        return student.chunk(noise, Condition(channels), pasts)

    return tf.function(chunk, shapes, autograph=False)


@functools.cache
def _matrix(side: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).standard_normal([side, side], np.float32))
