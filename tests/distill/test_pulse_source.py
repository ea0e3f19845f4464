"""The source: pulses at F0, whose phase runs on from chunk to chunk."""

import numpy as np
import tensorflow as tf

from distill.pulse_source import pulse_train, running_phase, upsampled

RATE_HZ = 16_000


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
    made = upsampled(tf.constant([[1.0, 3.0]]), 4)
    np.testing.assert_allclose(made[0], [1, 1, 1.25, 1.75, 2.25, 2.75, 3, 3])
