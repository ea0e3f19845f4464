"""Mel frames, fundamental frequency, and plots of sound."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wavenet import plots
from wavenet.config import FIXED, PRESETS, MelConvention, PitchConvention
from wavenet.data import audio
from wavenet.features import frames
from wavenet.features.frames import (
    FrameStatistics,
    above_silence,
    griffin_lim,
    mel_spectrogram,
    read_statistics,
    unlike,
)
from wavenet.measures import log_mel_distance_db, multi_resolution_stft_distance
from wavenet.shipped import recordings_folder

SMALL = MelConvention(
    sample_rate_hz=16000, hop_samples=128, window_samples=400, fft_size=512, bands=20, low_hz=50.0
)


def noise(samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def frame_by_the_definition(waveform, convention, frame):
    """One frame from sums over samples and triangles over frequencies, nothing shared."""
    n = np.arange(convention.window_samples)
    first = frame * convention.hop_samples + convention.hop_samples // 2 - len(n) // 2
    inside = (first + n >= 0) & (first + n < len(waveform))
    cut = np.where(inside, waveform[np.clip(first + n, 0, len(waveform) - 1)], 0.0)
    cut = cut * (0.5 - 0.5 * np.cos(2 * np.pi * n / len(n)))
    hz = np.arange(convention.fft_size // 2 + 1) * convention.sample_rate_hz / convention.fft_size
    cycles = np.outer(hz / convention.sample_rate_hz, n)
    magnitude = np.abs(np.exp(-2j * np.pi * cycles) @ cut)
    low, high = slaney(convention.low_hz), slaney(convention.top_hz)
    corners = [slaney_hz(low + (high - low) * i / (convention.bands + 1)) for i in range(22)]
    bands = [
        np.sum(
            magnitude * np.interp(hz, corners[b : b + 3], [0, 2 / (corners[b + 2] - corners[b]), 0])
        )
        for b in range(convention.bands)
    ]
    return np.log(np.maximum(bands, convention.floor))


def slaney(hz):
    return hz * 0.015 if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4)


def slaney_hz(mel):
    return mel / 0.015 if mel < 15 else 1000 * np.exp(np.log(6.4) * (mel - 15) / 27)


def test_mel_frames_are_their_definition_to_both_ends():
    waveform = noise(1000)
    mel = frames.mel_spectrogram(waveform, SMALL)
    assert len(mel) == 8
    wanted = [frame_by_the_definition(waveform, SMALL, frame) for frame in range(8)]
    np.testing.assert_allclose(mel, wanted, atol=2e-5)


@pytest.mark.parametrize("samples", [1, 127, 128, 129, 128 * 2100 + 1])
def test_there_are_as_many_frames_as_hops_begun(samples):
    mel = frames.mel_spectrogram(noise(samples), SMALL)
    assert len(mel) == int(np.ceil(samples / 128)) and np.all(np.isfinite(mel))


def test_silence_is_at_the_floor_and_above_it_zero_and_one_at_magnitude_one():
    silence = frames.mel_spectrogram(np.zeros(500, np.float32), SMALL)
    np.testing.assert_allclose(silence, np.log(1e-5), rtol=1e-6)
    magnitude = np.array([1e-5, 1.0, 10.0**-2.5])
    np.testing.assert_allclose(
        frames.above_silence(np.log(magnitude), SMALL), [0.0, 1.0, 0.5], atol=1e-6
    )


def test_reflecting_continues_a_cosine_where_zeros_break_it():
    # Reflection about sample 0 continues a cosine exactly.
    convention = MelConvention(**{**dict_of(SMALL), "padding": "reflect"})
    cosine = np.cos(2 * np.pi * 1000 * np.arange(3200) / 16000).astype(np.float32)
    reflected = frames.mel_spectrogram(cosine, convention)
    np.testing.assert_allclose(np.exp(reflected[0]), np.exp(reflected[12]), atol=1e-2)
    zeros = frames.mel_spectrogram(cosine, SMALL)
    assert np.abs(np.exp(zeros[0]) - np.exp(zeros[12])).max() > 0.1


def dict_of(convention):
    return {name: value for name, value in convention.to_dict().items() if name not in FIXED}


def test_htk_mel_is_its_formula_and_inverts():
    assert frames.hz_to_mel(1000.0, "htk") == pytest.approx(999.986, abs=1e-3)
    hz = np.linspace(0, 12000, 50)
    for scale in ("htk", "slaney"):
        np.testing.assert_allclose(
            frames.mel_to_hz(frames.hz_to_mel(hz, scale), scale), hz, atol=1e-6
        )


def test_a_convention_survives_json_whole():
    text = json.dumps(SMALL.to_dict())
    back = MelConvention.from_dict(json.loads(text))
    assert back.to_dict() == SMALL.to_dict()
    np.testing.assert_array_equal(
        frames.mel_spectrogram(noise(900), back), frames.mel_spectrogram(noise(900), SMALL)
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"window": "hamming"}, '`window` must be "periodic hann", got "hamming"'),
        ({"colour": 1}, "`colour` is not part"),
        ({"high_hz": 9000.0}, "low_hz < high_hz <= 8000"),
        ({"window_samples": 100}, "`window_samples` must be at least 128, got 100"),
        ({"log": "log2"}, "`log` must be natural or log10"),
        ({"floor": 0.0}, "`floor` must be above 0 and below 1"),
    ],
)
def test_a_convention_that_cannot_be_computed_is_refused(change, why):
    with pytest.raises(ValueError, match=why):
        MelConvention.from_dict({**SMALL.to_dict(), **change})
    with pytest.raises(ValueError, match="leave an FFT bin in every band"):
        frames.mel_spectrogram(noise(900), MelConvention(bands=400))


@pytest.mark.parametrize("samples", [1, 100, 5000, 5120, 5121])
def test_silence_is_unvoiced_on_the_frames_of_mel(samples):
    found_hz, voiced = frames.fundamental_frequency(np.zeros(samples), PitchConvention(16000, 128))
    assert len(found_hz) == len(frames.mel_spectrogram(np.zeros(samples), SMALL))
    assert not voiced.any() and not found_hz.any()


@pytest.mark.parametrize("method", ["dio", "harvest"])
def test_pitch_frames_lie_where_mel_frames_lie(method):
    # A rising voice: at frame f it has the frequency of sample f * hop + hop / 2.
    rate_hz, hop_samples = 16000, 800
    time = np.arange(16000) / rate_hz
    cycles = 100 * time + 100 * time**2
    sweep = 0.2 * sum(np.sin(2 * np.pi * k * cycles) / k for k in (1, 2, 3, 4))
    convention = PitchConvention(rate_hz, hop_samples, method=method)
    found_hz, voiced = frames.fundamental_frequency(sweep, convention)
    centres = (np.arange(20) * hop_samples + hop_samples / 2) / rate_hz
    assert len(found_hz) == 20 and voiced[3:-3].all()
    np.testing.assert_allclose(found_hz[3:-3], (100 + 200 * centres)[3:-3], atol=1.5)


def test_log_f0_is_interpolated_in_octaves_and_held_at_the_ends():
    f0_hz = np.array([0, 100, 0, 0, 0, 400, 0], np.float32)
    got = frames.log_f0_features(f0_hz, f0_hz > 0, reference_hz=200.0)
    np.testing.assert_allclose(got[:, 0], [-1, -1, -0.5, 0, 0.5, 1, 1], atol=1e-6)
    np.testing.assert_array_equal(got[:, 1], [0, 1, 0, 0, 0, 1, 0])
    unvoiced = frames.log_f0_features(np.zeros(5), np.zeros(5, bool))
    np.testing.assert_array_equal(unvoiced, np.zeros((5, 2)))


def test_a_spectrogram_is_loudest_at_its_tone_and_at_the_right_level():
    rate_hz = 16000
    waveform = 0.5 * np.sin(2 * np.pi * 2000 * np.arange(16000) / rate_hz)
    figure = plots.spectrogram_figure({"tone": waveform, "half $x_{": waveform / 2}, rate_hz)
    first, second = (axes.images[0] for axes in figure.axes if axes.images)
    level_db = first.get_array()
    rows = level_db[:, level_db.shape[1] // 2]
    _, _, _, top_khz = first.get_extent()
    assert top_khz == 8.0
    assert np.argmax(rows) / (len(rows) - 1) * top_khz == pytest.approx(2.0, abs=0.02)
    assert rows.max() == pytest.approx(-6.0, abs=0.1)
    assert first.get_clim() == second.get_clim()
    assert np.diff(first.get_clim()) == pytest.approx(plots.DB_RANGE)


@pytest.mark.parametrize("samples", [1, 50, 20000])
def test_a_plot_of_any_length_is_written(tmp_path, samples):
    plots.spectrogram_png(tmp_path / "a.png", {"noise": noise(samples)}, 16000)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("waveforms", [{}, {"empty": np.zeros(0)}, {"two": np.zeros((2, 9))}])
def test_a_plot_of_nothing_is_refused(tmp_path, waveforms):
    with pytest.raises(ValueError, match="`waveforms"):
        plots.spectrogram_png(tmp_path / "a.png", waveforms, 16000)


# HiFi-GAN's mel


HIFIGAN_HOP = 256
# By librosa 0.11: the sound reflected by 384 samples, `stft` of 1,024 not centred, the root of
# power + 1e-9, `filters.mel` from 0 to 8,000 Hz, the logarithm of at least 1e-5.
REFERENCE = Path(__file__).parent / "hifigan_mel.npz"


def test_it_is_the_mel_that_librosa_computed():
    time = np.arange(24 * HIFIGAN_HOP) / 22_050
    sweep = 0.4 * np.sin(2 * np.pi * (200 + 9_000 * time) * time)
    pulses = 0.3 * (np.arange(time.size) % 147 == 0)
    sound = sweep + pulses + np.random.default_rng(7).normal(0, 0.01, time.size)
    mel = PRESETS["wavenet-universal-22k"].config.data.mel(HIFIGAN_HOP)
    with np.load(REFERENCE) as stored:
        np.testing.assert_allclose(mel_spectrogram(sound, mel), stored["mel"], atol=1e-4)


# The sound that Griffin and Lim find


MEL = MelConvention(16_000, hop_samples=200)
COARSE = MelConvention(16_000, 100, 400, 512, bands=30)


def vowels(samples=12_000, seed=0):
    """A voice of 140 to 180 Hz that swells twice, over a little noise."""
    time = np.arange(samples) / 16_000
    phase = 2.0 * np.pi * np.cumsum(160.0 + 20.0 * np.sin(2.0 * np.pi * time)) / 16_000
    voice = sum(np.sin(k * phase) / k**1.5 for k in range(1, 30))
    hiss = np.random.default_rng(seed).normal(0.0, 0.002, samples)
    return (0.1 * voice * np.sin(np.pi * 3.0 * time) ** 2 + hiss).astype(np.float32)


@pytest.fixture(scope="module")
def recorded():
    return vowels()


@pytest.fixture(scope="module")
def sound(recorded):
    return griffin_lim(mel_spectrogram(recorded, MEL), MEL, len(recorded))


def test_iterations_beat_random_phases(sound, recorded):
    mel = mel_spectrogram(recorded, MEL)
    random, ten = (griffin_lim(mel, MEL, len(recorded), n) for n in (0, 10))
    mels = [log_mel_distance_db(x, recorded, MEL) for x in (random, ten, sound)]
    stfts = [multi_resolution_stft_distance(x, recorded) for x in (random, ten, sound)]
    assert mels[0] > 2.0 * mels[1] > 2.0 * mels[2]
    assert stfts[0] > stfts[1] > stfts[2]


@pytest.mark.parametrize(
    "convention",
    [
        COARSE,
        dataclasses.replace(COARSE, padding="reflect", log="log10", normalisation="peak"),
        dataclasses.replace(COARSE, scale="htk", low_hz=60.0, high_hz=7000.0, fft_size=1024),
        dataclasses.replace(COARSE, hop_samples=128, window_samples=401),
        dataclasses.replace(COARSE, hop_samples=400),
    ],
)
def test_every_convention_is_followed_to_the_last_sample(convention):
    recorded = vowels(4000)
    for samples in (3999, 4000):
        mel = mel_spectrogram(recorded[:samples], convention)
        sound = griffin_lim(mel, convention, samples)
        assert (sound.shape, sound.dtype) == ((samples,), np.float32)
        assert log_mel_distance_db(sound, recorded[:samples], convention) < 2.5


@pytest.mark.parametrize("samples", [1, 37, 200])
def test_one_frame_is_enough(samples):
    recorded = vowels()[2000 : 2000 + samples]
    sound = griffin_lim(mel_spectrogram(recorded, MEL), MEL, samples)
    assert sound.shape == (samples,)
    assert np.all(np.isfinite(sound))
    assert log_mel_distance_db(sound, recorded, MEL) < 6.0


def test_silence_between_two_sounds_stays_silent():
    recorded = np.concatenate([vowels(2000), np.zeros(4000), vowels(2000)]).astype(np.float32)
    sound = griffin_lim(mel_spectrogram(recorded, COARSE), COARSE, len(recorded))
    assert np.abs(sound[2500:5500]).max() < 1e-6 < np.abs(sound[:2000]).max()


@pytest.mark.parametrize(
    ("mel", "samples", "iterations", "message"),
    [
        (np.zeros((3, 29)), 300, 60, r"`mel_frames` must have the shape \[frames, 30\], got \(3"),
        (np.zeros((0, 30)), 300, 60, r"`mel_frames` must have the shape \[frames, 30\], got \(0"),
        (np.full((3, 30), np.nan), 300, 60, "`mel_frames` must be finite"),
        (np.zeros((3, 30)), 200, 60, "`num_samples` must be above 200 and at most 300 for 3"),
        (np.zeros((3, 30)), 301, 60, "`num_samples` must be above 200 and at most 300 for 3"),
        (np.zeros((1, 30)), 0, 60, "`num_samples` must be above 0 and at most 100"),
        (np.zeros((3, 30)), 300, -1, "`iterations` must be at least 0, got -1"),
    ],
)
def test_what_is_no_mel_of_so_many_samples_is_refused(mel, samples, iterations, message):
    with pytest.raises(ValueError, match=message):
        griffin_lim(mel, COARSE, samples, iterations)


# Frames of another convention are distinguished from those that a model was trained on


@pytest.fixture(scope="module")
def speech():
    """Two seconds of a shipped recording."""
    path = sorted(recordings_folder().glob("dev/*.flac"))[0]
    return audio.read(path, MEL.sample_rate_hz)[:32_000]


@pytest.fixture(scope="module")
def trained():
    """Return the statistics of other recordings, 4.64 dB louder."""
    paths = sorted(recordings_folder().glob("train/*.flac"))[:3]
    sounds = [audio.amplify(audio.read(path, MEL.sample_rate_hz), 4.64) for path in paths]
    return FrameStatistics.of(frames_of_sound(sound) for sound in sounds)


def frames_of_sound(waveform):
    return above_silence(mel_spectrogram(waveform, MEL), MEL)


@pytest.mark.parametrize("change_db", [-60, -20, 0, 10])
def test_speech_at_any_level_and_silence_are_the_models(speech, trained, change_db):
    assert unlike(frames_of_sound(audio.amplify(speech, change_db)), trained, MEL) is None
    assert unlike(frames_of_sound(np.zeros(16_000, np.float32)), trained, MEL) is None


CONVENTIONS = {
    "linear magnitudes": np.exp,
    "logarithms to base 10": lambda mel: mel / np.log(10.0),
    "decibels": lambda mel: 20.0 * mel / np.log(10.0),
    "of power": lambda mel: 2.0 * mel,
    "between 0 and 1": lambda mel: above_silence(mel, MEL),
    "triangles of height one": lambda mel: mel + 4.5,
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_another_convention_is_recognised(speech, trained, convention):
    mel = CONVENTIONS[convention](mel_spectrogram(speech, MEL))
    why = unlike(above_silence(mel, MEL), trained, MEL)
    assert why.endswith(
        "natural logarithms of magnitudes, at least 1e-05, 80 bands of scale slaney, normalised "
        "by area, 16000 Hz"
    )


def test_statistics_of_recordings_are_those_of_all_their_frames(speech):
    parts = [frames_of_sound(part) for part in (speech[:7000], speech[7000:])]
    whole = np.concatenate(parts).astype(np.float64)
    known = FrameStatistics.of(iter(parts))
    found = (known.high, known.mean, known.deviation)
    np.testing.assert_allclose(found, (whole.max(), whole.mean(), whole.std()), atol=6e-5)


def test_a_model_json_says_what_it_says_or_nothing():
    known = FrameStatistics(1.1, 0.54, 0.16)
    assert read_statistics({"frames": dataclasses.asdict(known)}) == known
    for broken in ({}, {"frames": None}, {"frames": {"mean": 1}}, {"frames": {"mean": "x"}}):
        assert read_statistics(broken) is None
    assert read_statistics({"frames": {"high": 1, "mean": 0, "deviation": 0}}) is None


# The same frames with any number of threads, on any processor


PROGRAM = """
import hashlib
import numpy as np
from wavenet.config import MelConvention
from wavenet.features.frames import mel_spectrogram
sound = np.random.default_rng(0).normal(0, 0.1, 48_000).astype(np.float32)
print(hashlib.sha256(mel_spectrogram(sound, MelConvention(16_000, 200)).tobytes()).hexdigest())
"""
NO_WIDE_VECTORS = "X86_V3 X86_V4 AVX2 FMA3 AVX512F AVX512_SKX AVX512_ICL"
SURROUNDINGS = {
    "one thread": {"OPENBLAS_NUM_THREADS": "1"},
    "two threads": {"OPENBLAS_NUM_THREADS": "2"},
    "an old processor's BLAS": {"OPENBLAS_CORETYPE": "Prescott"},
    "no wide vectors": {"NPY_DISABLE_CPU_FEATURES": NO_WIDE_VECTORS},
}


def digest(variables):
    """The digest of the frames of a process of its own."""
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    environment = {**os.environ, **variables}
    made = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return made.stdout.strip()


@pytest.fixture(scope="module")
def plain_digest():
    return digest({})


@pytest.mark.integration
@pytest.mark.parametrize("kind", SURROUNDINGS)
def test_frames_are_the_same_to_the_last_bit_with(kind, plain_digest):
    assert digest(SURROUNDINGS[kind]) == plain_digest
