"""The draft: a source that runs at F0, and a sound with the mel frames that it was made of."""

import numpy as np
import pytest
import tensorflow as tf

from distill.losses.power import magnitude_loss, multi_loss, squared_loss
from distill.source.excitation import (
    pulse_train,
    running_phase,
    upsampled,
)
from distill.source.inversion import MelInversion
from likelihoods.initial import Initial
from wavenet import shipped
from wavenet.data import audio, clip_source
from wavenet.features import MelConvention, above_silence, mel_spectrogram
from wavenet.measures import log_mel_distance_db
from wavenet.pitch_reader import PitchReader, pitch_loss, train_pitch_reader

RATE_HZ = 16_000
MEL = MelConvention(RATE_HZ, 200, bands=80)


@pytest.fixture(scope="module")
def speech():
    path = sorted(shipped.recordings_folder().glob("dev/*.flac"))[0]
    return audio.amplify(audio.read(path, RATE_HZ)[: 2 * RATE_HZ], 4.64)


def noise_like(sound: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 1, len(sound)).astype(np.float32)


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


@pytest.mark.parametrize("bins", [0, 60])
def test_reader_learns_f0_and_voicing_of_synthetic_frames(bins):
    generator = np.random.default_rng(0)
    octaves = generator.uniform(-1.0, 1.0, 3000).astype(np.float32)
    voiced = (generator.random(3000) < 0.6).astype(np.float32)
    place = (octaves * 5 + 10)[:, None] - np.arange(20)
    frames = voiced[:, None] * np.exp(-0.5 * place**2).astype(np.float32)
    rows = np.concatenate([frames, octaves[:, None], voiced[:, None]], 1)
    source = clip_source(
        [np.zeros(3000, np.int16)], [0], 50, frames=[rows], padding=rows[0] * 0, hop_samples=1
    )
    reader = PitchReader(20, Initial(0), padded=True, bins=bins)
    before = float(pitch_loss(*reader(frames[None]), rows[None, :, -2:]))
    train_pitch_reader(reader, source, 250, 0, lambda frames: frames[..., :20])
    assert float(pitch_loss(*reader(frames[None]), rows[None, :, -2:])) < 0.1 * before
    pitch = reader.pitch(tf.constant(frames[None])).numpy()[0]
    assert np.mean(pitch[:, 1] == voiced) > 0.97
    off = np.abs(pitch[:, 0] - octaves)[voiced == 1]
    assert np.median(off) < 0.1


def test_inversion_has_the_mel_that_it_was_made_of_and_more_passes_bring_it_nearer(speech):
    frames = above_silence(mel_spectrogram(speech, MEL), MEL)[None]
    source = tf.constant(noise_like(speech)[None])
    distances = []
    for passes in (1, 4):
        sound = MelInversion(MEL, passes)(tf.constant(frames), source).numpy()[0]
        assert sound.shape == speech.shape
        distances.append(log_mel_distance_db(sound, speech, MEL))
    silence = log_mel_distance_db(0.0 * speech, speech, MEL)
    assert distances[1] < distances[0] - 1.0 < 0.3 * silence


def test_magnitudes_of_bands_give_these_bands_again(speech):
    frames = above_silence(mel_spectrogram(speech, MEL), MEL)[None]
    inversion = MelInversion(MEL, 1)
    bands = inversion._bands(tf.constant(frames))
    bins = inversion.magnitudes(bands, inversion._flat(bands), 20).numpy()[0]
    again = np.log(np.maximum(bins @ inversion._filters, MEL.floor))
    wanted = mel_spectrogram(speech, MEL)
    assert np.sqrt(np.mean((again - wanted) ** 2)) < 0.1


def test_silent_frames_make_next_to_no_sound():
    sound = MelInversion(MEL, 2)(tf.zeros([1, 10, 80]), tf.ones([1, 2000]))
    assert float(tf.reduce_max(tf.abs(sound))) < 1e-3


def test_a_stretch_depends_on_a_bounded_stretch_of_frames(speech):
    inversion = MelInversion(MEL, 2)
    frames = above_silence(mel_spectrogram(speech, MEL), MEL)[None]
    source = noise_like(speech)[None]
    whole = inversion(tf.constant(frames), tf.constant(source)).numpy()
    side = inversion.side_frames
    first, last = 60, 70
    assert first - side > 0 and last + side < frames.shape[1]
    part = inversion(
        tf.constant(frames[:, first - side : last + side]),
        tf.constant(source[:, 200 * (first - side) : 200 * (last + side)]),
    ).numpy()
    np.testing.assert_allclose(
        part[:, 200 * side : 200 * (side + last - first)],
        whole[:, 200 * first : 200 * last],
        atol=1e-5,
    )


@pytest.mark.parametrize("loss", [squared_loss, magnitude_loss, multi_loss])
def test_power_losses_are_zero_for_the_same_and_grow_with_noise(loss, speech):
    recorded = tf.constant(speech[None, :8000])
    noise = 0.05 * tf.constant(noise_like(speech)[None, :8000])
    values = [float(loss(recorded + scale * noise, recorded)) for scale in (0.0, 0.3, 1.0)]
    assert values[0] < 1e-6
    assert values[0] < values[1] < values[2]


@pytest.mark.parametrize("loss", [squared_loss, magnitude_loss, multi_loss])
def test_power_losses_do_not_hear_phase_or_depend_on_the_level(loss, speech):
    recorded = tf.constant(speech[None, :8000])
    turned = float(loss(-recorded, recorded))
    halved = float(loss(0.5 * recorded, recorded))
    assert turned < 1e-6 < halved
    quiet = [float(loss(0.5 * x, x)) for x in (recorded, 0.7 * recorded)]
    np.testing.assert_allclose(*quiet, rtol=0.1)


def test_squared_loss_leaves_time_out(speech):
    recorded = tf.constant(speech[None, :8192])
    late = tf.roll(recorded, 1024, 1)
    assert float(squared_loss(late, recorded)) < 0.2 * float(magnitude_loss(late, recorded))
