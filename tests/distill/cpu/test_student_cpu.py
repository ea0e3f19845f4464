"""The compiled flows against the flows they came from, and against their own laws."""

import gc
import itertools
import math
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
import tensorflow as tf

from distill import model
from distill.config import StudentConfig
from distill.cpu import engine as engine_module
from distill.cpu import kernels
from distill.cpu.engine import TILE_ROWS, FlowEngine, compile_kernels, noise_words, pack, run_tiles
from distill.residual import Condition
from distill.student import ParallelWaveNet
from onepass.foundation.rules import UserError
from onepass.likelihoods import noise as counter_noise
from wavenet.config import MelConvention
from wavenet.front import Request

# Channel counts below, between and above whole vectors; pasts shorter and longer than a tile.
STUDENTS = {
    "wide taps, frames": dict(
        flows=(2, 10), filter_width=3, residual_channels=24, gate_channels=17, front_width=2,
        min_log_scale=-1.0, feature_channels=3, condition_channels=5, upsample_factors=(4,),
    ),
    "two taps, speakers": dict(
        flows=(3, 1, 4), cycle=3, filter_width=2, residual_channels=16, gate_channels=64,
        speakers=2, speaker_channels=9,
    ),
    "bunches of 4, speakers": dict(
        flows=(2, 5), filter_width=2, residual_channels=24, gate_channels=17, front_width=11,
        bunch_samples=4, min_log_scale=-1.0, speakers=2, speaker_channels=5,
    ),
    "rows of 12 samples, bunches of 4": dict(
        flows=(1, 4), filter_width=2, residual_channels=24, gate_channels=40, front_width=9,
        bunch_samples=4, feature_channels=5, condition_channels=7, upsample_factors=(24,),
        domain="residual", source="pulses", prediction_order=3, conditioner_units=4, subframes=2,
    ),
    "no condition": dict(
        flows=(9,), filter_width=2, residual_channels=100, gate_channels=40, front_width=5,
        min_log_scale=-0.3,
    ),
}  # fmt: skip
SAMPLES = 3 * TILE_ROWS + 12
needs_bfloat16 = pytest.mark.skipif(not kernels.IS_AVAILABLE, reason="needs AVX512-BF16")


@pytest.fixture(scope="module", params=STUDENTS)
def student(request):
    """A student whose every variable is drawn, so that no bias is left at zero."""
    model = network_of(request.param)
    rng = np.random.default_rng(2)
    for variable in model.trainable_variables:
        variable.assign_add(rng.normal(0.0, 0.1, variable.shape))
    return model


def network_of(kind):
    config = StudentConfig(**STUDENTS[kind])
    mel = MelConvention(config.sample_rate_hz, config.hop_samples, bands=5)
    return ParallelWaveNet(config, seed=1, mel=mel)


def noise_of(student, batch, samples=SAMPLES):
    return np.array(student.noise(7, tf.range(batch), 0, samples))


def condition_of(student, batch, samples=SAMPLES):
    """The condition of the first samples of a sound; see `part_of`."""
    config, draws = student.config, []
    for count in (config.gate_inputs - config.held_inputs, config.held_inputs):
        normal = np.random.default_rng(count).normal(size=[batch, SAMPLES, count])
        draws.append(normal.astype(np.float32) if count else None)
    return part_of(Condition(draws[0], held=draws[1]), student, 0, samples)


def part_of(condition, student, start, stop):
    """Samples start to stop, which begin with a bunch and with a row."""

    def part(values, samples):
        return None if values is None else values[:, start // samples : -(-stop // samples)]

    config = student.config
    held = part(condition.held, config.row_samples if config.held_inputs else 1)
    return Condition(part(condition.channels, config.bunch_samples), held=held)


def run(engine, state, noise, condition):
    return engine.run(state, noise, condition.channels, condition.held)


def flowed(student, batch=2, cuts=(), threads=1, noise=None, narrow=False):
    """Output, location and log-scale [3, batch, time], made in the chunks between `cuts`."""
    config = student.config
    together = math.lcm(config.bunch_samples, config.row_samples if config.held_inputs else 1)
    cuts = [cut - cut % together for cut in cuts]
    engine = FlowEngine(student.flows, threads, narrow)
    state = engine.initial_state(batch)
    noise = noise_of(student, batch) if noise is None else noise
    condition = condition_of(student, batch)
    chunks = []
    for start, stop in itertools.pairwise([0, *cuts, noise.shape[1]]):
        part = part_of(condition, student, start, stop)
        made, state = run(engine, state, noise[:, start:stop], part)
        chunks.append(np.stack(made))
    return np.concatenate(chunks, -1)


def test_the_engine_makes_what_the_flows_make(student):
    expected = student.draw(noise_of(student, 2), condition_of(student, 2))
    for got, want in zip(flowed(student), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize(
    ("batch", "cuts"),
    [(5, ()), (1, (0, 1, 2, 9)), (2, (7, 300, 300, 301)), (2, tuple(range(13, SAMPLES, 37)))],
)
def test_a_row_is_the_same_in_any_batch_chunk_and_thread(student, batch, cuts, threads):
    whole = flowed(student, batch=5)[:, :batch]
    np.testing.assert_array_equal(flowed(student, batch, cuts, threads), whole)


@needs_bfloat16
@pytest.mark.integration
def test_narrow_products_are_the_flows_within_rounding_in_any_batch_chunk_and_thread(student):
    wide, narrow = flowed(student, 3), flowed(student, 3, narrow=True)
    rounding = np.sqrt(np.mean(np.square(wide - narrow), (1, 2)) / np.mean(np.square(wide), (1, 2)))
    assert rounding[0] > 1e-6 and np.all(rounding < 0.02), rounding
    for batch, cuts, threads in [(1, (7, 300, 301), 1), (3, (1, 2, 9), 2), (2, (), 8)]:
        again = flowed(student, batch, cuts, threads, narrow=True)
        np.testing.assert_array_equal(again, narrow[:, :batch])


@pytest.mark.parametrize("narrow", [False, pytest.param(True, marks=needs_bfloat16)])
def test_a_sample_reads_only_the_noise_before_it_in_its_own_row(student, narrow):
    noise, at = noise_of(student, 2), TILE_ROWS + 5
    before = flowed(student, noise=noise, narrow=narrow)
    noise[0, at] = np.nan
    after = flowed(student, noise=noise, narrow=narrow)
    np.testing.assert_array_equal(after[:, 1], before[:, 1])
    np.testing.assert_array_equal(after[:, 0, :at], before[:, 0, :at])
    assert np.isnan(after[0, 0, at]) and np.isnan(after[1:, 0, at + 1]).all()


def test_bfloat16_on_a_processor_without_it_is_refused(monkeypatch):
    monkeypatch.setattr(kernels, "IS_AVAILABLE", False)
    with pytest.raises(UserError, match="numba-bfloat16 needs a processor with AVX512-BF16"):
        model.check_backend("numba-bfloat16")
    with pytest.raises(ValueError, match="`narrow` needs a processor"):
        FlowEngine(network_of("no condition").flows, narrow=True)


def test_a_sound_goes_on_from_its_past(student):
    """Long after the start, when every window has moved several times, against the definition."""
    noise = np.tile(noise_of(student, 1), [1, 12])
    condition = condition_of(student, 1)
    engine = FlowEngine(student.flows, threads=2)
    state = engine.initial_state(1)
    for start in range(0, noise.shape[1], SAMPLES):
        last, state = run(engine, state, noise[:, start : start + SAMPLES], condition)
    every = [
        None if each is None else np.tile(each, [1, 12, 1])
        for each in (condition.channels, condition.held)
    ]
    expected = student.draw(noise, Condition(every[0], held=every[1]))
    for got, want in zip(last, expected, strict=True):
        np.testing.assert_allclose(got, want[:, -SAMPLES:], rtol=1e-4, atol=1e-5)


def test_a_state_serves_once_and_its_copy_once_more(student):
    engine = FlowEngine(student.flows, threads=1)
    noise, condition = noise_of(student, 1), condition_of(student, 1)
    _, state = run(engine, engine.initial_state(1), noise, condition)
    twin = state.copy()
    first, _ = run(engine, state, noise, condition)
    with pytest.raises(ValueError, match="used up"):
        run(engine, state, noise, condition)
    second, _ = run(engine, twin, noise, condition)
    np.testing.assert_array_equal(first.output, second.output)


def test_its_threads_end_with_the_engine():
    before = set(threading.enumerate())
    flowed(network_of("no condition"), threads=4)
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(60.0)
        assert not thread.is_alive()


def test_what_does_not_fit_the_engine_is_refused():
    flows = network_of("no condition").flows
    framed = network_of("wide taps, frames")
    rows = network_of("rows of 12 samples, bunches of 4")
    noise, channels = noise_of(framed, 1, 20), condition_of(rows, 1, 20).channels

    def ran(flows, batch, *arrays):
        engine = FlowEngine(flows)
        return engine.run(engine.initial_state(batch), *arrays)

    for name, call in (
        ("flows", lambda: FlowEngine([])),
        ("threads", lambda: FlowEngine(flows, threads=0)),
        ("batch", lambda: FlowEngine(flows).initial_state(0)),
        *(("noise", lambda n=n: ran(flows, 2, np.zeros(n))) for n in ([1, 20], [2], [2, 20, 1])),
        ("condition", lambda: ran(framed.flows, 1, noise)),
        ("condition", lambda: ran(framed.flows, 1, noise, np.zeros([1, 19, 5]))),
        ("held", lambda: ran(rows.flows, 1, noise, channels)),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            call()


def test_kernels_compiled_before_there_is_a_student_are_those_of_every_student(student):
    compile_kernels()
    engine = FlowEngine(student.flows)
    noise, condition = noise_of(student, 1, 4), condition_of(student, 1, 4)
    run(engine, engine.initial_state(1), noise, condition)
    wide = [types for types in run_tiles.signatures if types[3].types[-1] == numba.types.none]
    assert len(wide) == 1


def test_weights_are_packed_once_and_anew_when_they_changed(monkeypatch):
    packed = []
    monkeypatch.setattr(engine_module, "pack", lambda *given: packed.append(1) or pack(*given))
    student = network_of("no condition")
    request = Request(num_samples=200, seed=3, rows=(0, 1))
    first = model.generate(student, request, "numba")
    with monkeypatch.context() as patch:  # finding variables would take longer than reading them
        patch.setattr(tf.Module, "variables", property(lambda self: pytest.fail("looked for")))
        np.testing.assert_array_equal(model.generate(student, request, "numba"), first)
    assert len(packed) == 1
    student.flows[0].head2_bias.assign(student.flows[0].head2_bias + 0.25)
    assert np.abs(model.generate(student, request, "numba") - first).max() > 0.01
    assert len(packed) == 2


def test_an_engine_ends_with_its_student():
    student = network_of("no condition")
    model.generate(student, Request(num_samples=20, seed=3, rows=(0,)), "numba")
    engine = weakref.ref(model._ENGINES[student][False].engine)
    del student
    gc.collect()
    assert engine() is None


def test_chunks_and_requests_share_a_pool_of_threads_and_concurrent_ones_do_not(monkeypatch):
    made = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers):
            made.append(workers)
            super().__init__(workers)

    monkeypatch.setattr(engine_module, "ThreadPoolExecutor", Pool)
    engine = FlowEngine(network_of("no condition").flows, threads=2)
    noise = np.random.default_rng(0).normal(size=[3, SAMPLES]).astype(np.float32)
    expected = engine.run(engine.initial_state(3), noise)[0].output
    state = engine.initial_state(3)
    for first in range(0, SAMPLES, 100):
        _, state = engine.run(state, noise[:, first : first + 100])
    assert made == [2]
    with ThreadPoolExecutor(4) as callers:
        runs = [callers.submit(engine.run, engine.initial_state(3), noise) for _ in range(8)]
        for run in runs:
            np.testing.assert_array_equal(run.result()[0].output, expected)
    assert len(made) <= 4


@pytest.mark.parametrize("seed", [0, 3, 2**33 + 5])
def test_the_compiled_words_are_those_of_the_cipher(seed):
    rows = (0, 7, 2**31 - 1)
    expected = counter_noise.bits(seed, tf.constant(rows), 40, 300)
    np.testing.assert_array_equal(noise_words(seed, rows, 40, 300), expected)
    halves = [noise_words(seed, rows[:1], 40 + first, 150) for first in (0, 150)]
    np.testing.assert_array_equal(np.concatenate(halves, 1), expected[:1])
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match=r"`seed` must be in \[0, 2\^64\), got"):
            noise_words(wrong, (0,), 0, 1)
