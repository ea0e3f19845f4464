"""Flows in the residual's domain: the recursion, its density, and the source."""

import numpy as np
import pytest
import tensorflow as tf
from students import FRAMES, HOP, student_of

from distill.cpu import kernels
from distill.residual import (
    LEVEL,
    Prediction,
    pulse_train,
    running_phase,
    synthesise,
    upsample_frames,
)

ORDER, ROW, ROWS, BATCH = 5, 4, 7, 2  # rows shorter than the order, too
TIME = ROW * ROWS
RATE_HZ = 16_000


def coefficients_of(rows: int = ROWS, order: int = ORDER):
    """Return coefficients of stable predictors, float32 [BATCH, rows, order]."""
    draws = np.random.default_rng(1).normal(size=(BATCH, rows, order))
    return (0.8 * draws / np.abs(draws).sum(-1, keepdims=True)).astype(np.float32)


def draws_of(shape, seed: int = 2):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_hand(residual, coefficients, tail, row_samples):
    wave = np.concatenate([tail, np.zeros_like(residual)], 1).astype(np.float64)
    order = coefficients.shape[-1]
    for t in range(residual.shape[1]):
        past = wave[:, t : t + order][:, ::-1]
        wave[:, order + t] = residual[:, t] + (past * coefficients[:, t // row_samples]).sum(1)
    return wave[:, order:], wave[:, -order:]


@pytest.mark.parametrize(("row", "time"), [(ROW, TIME), (ROW, TIME - 3), (9, 9 * ROWS), (12, 1)])
def test_the_recursion_is_the_one_by_hand(row, time):
    residual, tail, rows = draws_of([BATCH, time]), draws_of([BATCH, ORDER], 3), -(-time // row)
    gain = draws_of([BATCH, rows], 4)
    amplified = residual * np.exp(np.repeat(gain, row, 1)[:, :time])
    wanted = by_hand(amplified, coefficients_of(rows), tail, row)
    made = synthesise(tf.constant(amplified), coefficients_of(rows), tf.constant(tail), row)
    compiled = kernels.wave(residual, Prediction(coefficients_of(rows), gain), tail, row)
    for wave, last in (made, compiled):
        np.testing.assert_allclose(wave, wanted[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(last, wanted[1], rtol=1e-4, atol=1e-5)


def test_the_compiled_recursion_is_bit_for_bit_the_same_in_chunks_and_batches():
    residual, tail = draws_of([BATCH, TIME]), draws_of([BATCH, ORDER], 3)
    gain = draws_of([BATCH, ROWS], 4)
    whole, _ = kernels.wave(residual, Prediction(coefficients_of(), gain), tail, ROW)
    for one in range(BATCH):
        last, parts = tail[one : one + 1], []
        for first, end in ((0, 2), (2, 3), (3, ROWS)):
            rows = Prediction(coefficients_of()[one : one + 1, first:end], gain[[one], first:end])
            part = residual[one : one + 1, first * ROW : end * ROW]
            wave, last = kernels.wave(part, rows, last, ROW)
            parts.append(wave)
        np.testing.assert_array_equal(np.concatenate(parts, 1)[0], whole[one])


def test_the_gradient_of_the_recursion_is_that_of_its_matrix():
    residual, tail = tf.constant(draws_of([BATCH, TIME])), tf.zeros([BATCH, ORDER])
    with tf.GradientTape() as tape:
        tape.watch(residual)
        wave = synthesise(residual, coefficients_of(), tail, ROW)[0]
    jacobian = tape.batch_jacobian(wave, residual).numpy()
    columns = [
        by_hand(np.tile(e, (BATCH, 1)), coefficients_of(), tail, ROW)[0] for e in np.eye(TIME)
    ]
    np.testing.assert_allclose(jacobian, np.stack(columns, -1), atol=1e-5)
    assert np.allclose(np.diagonal(jacobian, axis1=1, axis2=2), 1.0)


@pytest.fixture(scope="module")
def student():
    return student_of("residual", compute_dtype="float64")


def frames_of(count: int = FRAMES):
    return tf.constant(0.6 + 0.2 * np.random.default_rng(3).random((1, count, 7), np.float32))


def drawn(student, noise, frames):
    condition, _ = student.condition(frames)
    return student.draw(noise, condition)


def test_output_is_noise_times_scale_plus_location(student):
    frames = frames_of()
    noise = tf.cast(student.noise(0, [0], 0, FRAMES * HOP), tf.float64)
    made = drawn(student, noise, frames)
    again = noise * tf.exp(made.log_scale) + made.location
    np.testing.assert_allclose(again, made.output, atol=1e-9)


def test_the_source_is_nothing_where_unvoiced_and_repeats_at_f0_where_voiced(student):
    source = student.residual._source
    hertz = 250.0  # 16 samples of 4,000 Hz
    octaves = np.full([1, FRAMES, 1], np.log2(hertz / 200.0))
    voiced = np.repeat([[1.0, 0.0]], FRAMES // 2, 1).reshape(1, FRAMES, 1)
    pitch = tf.constant(np.concatenate([octaves, voiced], -1))
    sound, channels, _ = source(pitch, tf.zeros([1], tf.float64), slice(0, FRAMES * HOP))
    half = FRAMES * HOP // 2
    np.testing.assert_array_equal(sound[0, half + HOP :], 0.0)
    inside = np.asarray(sound[0, : half - HOP])
    np.testing.assert_allclose(inside[16:], inside[:-16], atol=1e-3)
    np.testing.assert_allclose(inside[: 16 * 10].std(), LEVEL, rtol=0.05)
    np.testing.assert_allclose(LEVEL * channels[..., 7], sound)


def test_without_a_source_the_noise_stays(student):
    plain = student_of("residual", source="none")
    condition, _ = plain.condition(frames_of())
    assert condition.source is None
    assert condition.channels is None
    assert condition.held.shape[-1] == plain.config.gate_inputs


def test_phase_runs_at_f0_and_goes_on_from_chunk_to_chunk():
    f0_hz = tf.constant(np.linspace(100.0, 300.0, 4000, dtype=np.float32)[None])
    whole = running_phase(f0_hz, RATE_HZ, tf.zeros([1], tf.float64), 0)
    steps = np.diff(np.unwrap(2 * np.pi * whole.numpy()[0])) / (2 * np.pi) * RATE_HZ
    np.testing.assert_allclose(steps, f0_hz[0, 1:], rtol=1e-4)
    later = running_phase(f0_hz[:, 900:], RATE_HZ, whole[:, 999], 100)
    np.testing.assert_allclose(later, whole[:, 900:], atol=1e-9)


def test_pulses_have_every_harmonic_alike_and_nothing_between():
    f0_hz = tf.fill([1, RATE_HZ], 250.0)
    phase_cycles = running_phase(f0_hz, RATE_HZ, tf.zeros([1], tf.float64), 0)
    pulses = pulse_train(phase_cycles, f0_hz, RATE_HZ).numpy()[0]
    assert abs(np.mean(pulses**2) - 1.0) < 0.01
    spectrum = np.abs(np.fft.rfft(pulses))
    heard = spectrum[250 : 250 * 30 + 1 : 250]
    assert np.ptp(heard) < 0.01 * heard.max()
    assert np.delete(spectrum, np.arange(250, 250 * 30 + 1, 250)).max() < 0.01 * heard.max()


def test_upsampling_is_linear_between_the_middles_of_frames():
    made = upsample_frames(tf.constant([[1.0, 3.0]]), 4)
    np.testing.assert_allclose(made[0], [1, 1, 1.25, 1.75, 2.25, 2.75, 3, 3])
