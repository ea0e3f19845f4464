"""Students next to their teacher's cached sampler and to GAN vocoders, from frames to sound.

Everything is one sound at a time on all cores, in seconds of sound per second of computing, so that
models of different rates can be compared. "student" and "teacher" are `shipped` and its teacher
(22.05 kHz), "student, bfloat16" `shipped` with products of bfloat16 numbers, "small student"
`shipped-small`; "student, paper" has the flows of Parallel WaveNet (10, 10, 10 and 30 layers of 64
channels, 24 kHz; van den Oord et al. 2017, arXiv 1711.10433) with random weights.
"""

import functools
import time
from typing import Any

import numpy as np

import onepass
from benchmarks import torch_peers
from benchmarks.matrix_peak import PEAK, peak_gflops
from benchmarks.report import Benchmark, Row
from distill.config import RECENT, StudentConfig
from distill.cpu import kernels
from distill.cpu.engine import FlowEngine
from distill.model import NARROW, Backend, Request, generate, stream
from distill.student import ParallelWaveNet
from wavenet.config import MelConvention

SECONDS = (1.0, 5.0)
PAPER = StudentConfig(
    flows=(10, 10, 10, 30),
    filter_width=3,
    residual_channels=64,
    gate_channels=64,
    feature_channels=80,
    condition_channels=80,
    upsample_factors=(16, 15),
    sample_rate_hz=24_000,
)
HIFIGAN, VOCOS, TEACHER = "HiFi-GAN V1", "Vocos", "teacher, cached"
FARGAN_REASON = "it is part of Opus 1.6, whose source is in no package registry as a library"
SPEED = "times real time"


def benchmark(quick: bool = False, paper: StudentConfig = PAPER) -> Benchmark:
    """Return the benchmark of students; `quick` has short sounds."""
    found = Benchmark("students", left_out={"FARGAN": FARGAN_REASON})
    student: Any = onepass.load("shipped")
    teacher: Any = onepass.load("shipped-universal-teacher")
    mel = MelConvention(paper.sample_rate_hz, paper.hop_samples, bands=80)
    random = ParallelWaveNet(paper, mel=mel)
    small: Any = onepass.load("shipped-small")
    if not kernels.IS_AVAILABLE:
        found.left_out["student, bfloat16"] = "the processor lacks AVX512-BF16"
    for seconds in (0.2,) if quick else SECONDS:
        size = f"{seconds:g} s"
        _add_student(found, "student", student.network, seconds, size)
        _add_student(found, "student, paper", random, seconds, size)
        _add_student(found, "small student", small.network, seconds, size)
        if kernels.IS_AVAILABLE:
            for name, model in (("student", student), ("small student", small)):
                _add_whole(found, f"{name}, bfloat16", model.network, seconds, size, NARROW)
        frames = _frames(teacher.network.config, round(seconds * teacher.front.sample_rate_hz))[0]
        found.add(
            Row(TEACHER, size, 1, SPEED),
            functools.partial(_teacher_speed, teacher, frames, seconds),
        )
        found.add(Row(PEAK, size, 1, "GFLOP/s"), peak_gflops)
        for name, make in ((HIFIGAN, torch_peers.hifigan), (VOCOS, torch_peers.vocos)):
            found.peer(name, functools.partial(_add_peer, found, name, make, seconds, size))
    return found


def _add_peer(found: Benchmark, name: str, make: Any, seconds: float, size: str) -> None:
    found.add(Row(name, size, 1, SPEED), make(seconds))


def _add_student(
    found: Benchmark, name: str, student: ParallelWaveNet, seconds: float, size: str
) -> None:
    """Add the rows of a student: the whole, its flows alone, and the first chunk of a stream."""
    samples = round(seconds * student.config.sample_rate_hz)
    request = _add_whole(found, name, student, seconds, size, "numba")
    flow = functools.partial(_flow_seconds, student, samples)
    found.add(Row(f"flows of {name}", size, 1, SPEED), lambda: seconds / flow())
    gigaflop = flops_per_sample(student.config) * samples / 1e9
    row = Row(f"products of {name}", size, 1, "GFLOP/s", (PEAK,))
    found.add(row, lambda: gigaflop / flow())
    found.add(
        Row(f"first chunk of {name}", size, 1, "chunks/s"),
        lambda: 1 / _timed(lambda: next(stream(student, request, "numba"))),
    )


def _add_whole(
    found: Benchmark,
    name: str,
    student: ParallelWaveNet,
    seconds: float,
    size: str,
    backend: Backend,
) -> Request:
    """Add the row of a student from frames to sound, and return what it makes."""
    samples = round(seconds * student.config.sample_rate_hz)
    request = Request(samples, frames=_frames(student.config, samples))
    found.add(
        Row(name, size, 1, SPEED, (TEACHER, HIFIGAN, VOCOS)),
        lambda: seconds / _timed(lambda: generate(student, request, backend)),
    )
    return request


def flops_per_sample(config: StudentConfig) -> int:
    """Return the additions and multiplications in a student's matrix products per sample of sound.

    With R residual and G gate channels, width k, C channels of condition and F past samples:

        a layer    2 (k R + C) 2 G + 2 G R
        a flow     2 F R + 2 R R + 2 R 2      (front and the two layers of the head)

    With bunches of B samples, layers and front run once for B samples, and the gates of each
    sample's head cost 2 (R + 8) 2 R; what a row shares of C runs once for a row. Gates, biases,
    noise and the conditioner are left out.
    """
    R, G, B = config.residual_channels, config.gate_channels, config.bunch_samples
    H, C = config.held_inputs, config.gate_inputs - config.held_inputs
    layer = 2 * (config.filter_width * R + C) * 2 * G + 2 * G * R
    head = 2 * R * R + 2 * R * 2 + (2 * (R + RECENT) * 2 * R if B > 1 else 0)
    bunch = sum(config.flows) * layer + len(config.flows) * 2 * config.front_width * R
    held = sum(config.flows) * 2 * H * 2 * G // config.row_samples if H else 0
    return bunch // B + held + len(config.flows) * head


def _frames(config: Any, samples: int) -> np.ndarray:
    """Return random frames [1, frames, channels]: zeros may be computed faster."""
    shape = (1, -(-samples // config.hop_samples), config.feature_channels)
    return np.random.default_rng(0).random(shape, np.float32)


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _teacher_speed(teacher: Any, frames: np.ndarray, seconds: float) -> float:
    samples = round(seconds * teacher.front.sample_rate_hz)
    return seconds / _timed(lambda: teacher.sample(condition=frames, seed=0, length=samples))


def _flow_seconds(student: ParallelWaveNet, samples: int) -> float:
    """Return the seconds of the compiled flows alone."""
    inputs, engine = _inputs(student, samples), _engine(student)
    return _timed(lambda: engine.run(engine.initial_state(1), *inputs))


@functools.cache
def _engine(student: ParallelWaveNet) -> FlowEngine:
    return FlowEngine(student.flows)


@functools.cache
def _inputs(student: ParallelWaveNet, samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return noise [1, samples], and the condition of its bunches and rows, float32."""
    draws, config = np.random.default_rng(0), student.config
    bunches = -(-samples // config.bunch_samples)
    condition = draws.random((1, bunches, config.gate_inputs - config.held_inputs), np.float32)
    rows = -(-samples // config.row_samples) if config.held_inputs else samples
    noise = draws.logistic(size=(1, samples)).astype(np.float32)
    return noise, condition, draws.random((1, rows, config.held_inputs), np.float32)
