"""Measures of a vocoder on sounds with known faults."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.signal

from onepass.foundation.rules import UserError
from wavenet import measures, shipped
from wavenet import optional_packages as packages
from wavenet.config import MelConvention, PitchConvention
from wavenet.data import audio
from wavenet.features.frames import fundamental_frequency
from wavenet.measures import dnsmos_p808, measure, plcmos, residual_kurtosis
from wavenet.optional_packages import available

RATE_HZ = 16_000
MEL = MelConvention(RATE_HZ, hop_samples=200)
NAMES = [
    "log_mel_distance_db",
    "multi_resolution_stft_distance",
    "pesq",
    "stoi",
    "f0_within_50_cents",
    "f0_error_cents",
    "voicing_error",
    "residual_kurtosis",
    "level_difference_db",
    *(name for name in ("dnsmos_p808", "plcmos") if available(name)),
]
BEST_AT_ONE = ("stoi", "f0_within_50_cents")
OF_THE_SOUND_ALONE = ("residual_kurtosis", "dnsmos_p808", "plcmos")
DISTANCES = [name for name in NAMES if name not in (*BEST_AT_ONE, "pesq", *OF_THE_SOUND_ALONE)]


def noise(samples, level=0.1, seed=0):
    return np.random.default_rng(seed).normal(0, level, samples).astype(np.float32)


def babble(seconds, f0_hz=150.0, rate_hz=RATE_HZ):
    """Syllables, three a second, of a gliding voice with two formants over a little noise."""
    time = np.arange(round(seconds * rate_hz)) / rate_hz
    pitch_hz = f0_hz * (1.0 + 0.2 * np.sin(2.0 * np.pi * 0.7 * time))
    phase = 2.0 * np.pi * np.cumsum(pitch_hz) / rate_hz
    formant_hz = 900.0 + 400.0 * np.sin(2.0 * np.pi * 1.3 * time)
    voice = np.zeros(len(time))
    for k in range(1, 25):
        near = np.exp(-(((k * pitch_hz - formant_hz) / 300.0) ** 2))
        higher = 0.3 * np.exp(-(((k * pitch_hz - 2500.0) / 500.0) ** 2))
        voice += (1.0 / k + near + higher) * np.sin(k * phase)
    syllables = np.clip(np.sin(2.0 * np.pi * 3.0 * time), 0.0, None) ** 0.5
    return (0.1 * voice * syllables).astype(np.float32) + noise(len(time), 3e-4)


def tone(f0_hz, seconds=0.5):
    time = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    waves = (np.sin(2 * np.pi * f0_hz * k * time) / k for k in (1, 2, 3, 4))
    return (0.2 * sum(waves)).astype(np.float32)


def bursts(seconds):
    """Noise, a quarter of a second on and a quarter off."""
    samples = round(seconds * RATE_HZ)
    return noise(samples) * (np.arange(samples) % (RATE_HZ // 2) < RATE_HZ // 4).astype(np.float32)


def stft_distance_by_the_definition(sound, recorded):
    """Frame by frame, bin by bin, as Parallel WaveGAN writes it down."""
    distances = []
    for fft, hop, window in ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240)):
        n = np.arange(window)
        hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * n / window)
        X, Y = [], []
        for centre in range(0, len(sound) + 1, hop):
            at = centre - window // 2 + n
            inside = (at >= 0) & (at < len(sound))
            for waveform, rows in ((recorded, X), (sound, Y)):
                cut = np.zeros(fft)
                cut[:window] = np.where(inside, waveform[np.clip(at, 0, len(sound) - 1)], 0) * hann
                rows.append(np.maximum(np.abs(np.fft.fft(cut))[: fft // 2 + 1], 1e-7**0.5))
        X, Y = np.array(X), np.array(Y)
        convergence = math.sqrt(np.sum((X - Y) ** 2) / np.sum(X**2))
        distances.append(convergence + np.sum(np.abs(np.log(X) - np.log(Y))) / X.size)
    return sum(distances) / 3


def test_a_recording_is_perfect_beside_itself():
    recorded = babble(1.0)
    found = measures.measure(recorded, recorded.copy(), RATE_HZ, MEL)
    assert list(found) == NAMES
    assert {name: found[name] for name in DISTANCES} == dict.fromkeys(DISTANCES, 0.0)
    assert found["pesq"] == pytest.approx(4.644, abs=1e-3)
    assert [found[name] for name in BEST_AT_ONE] == pytest.approx([1.0, 1.0], abs=1e-9)


def test_noise_worsens_every_measure_and_more_noise_further():
    recorded = babble(1.2)
    steps = [
        measures.measure(recorded + noise(len(recorded), level), recorded, RATE_HZ, MEL)
        for level in (0.0, 0.004, 0.02, 0.1)
    ]
    assert steps[1]["f0_error_cents"] > 0.0
    assert steps[1]["voicing_error"] > 0.0
    for name in {"pesq", "stoi", *DISTANCES} - {"f0_error_cents", "voicing_error"}:
        worse = np.diff([step[name] for step in steps])
        assert np.all(worse < 0 if name in ("pesq", "stoi") else worse > 0), name


@pytest.mark.parametrize("log", ["natural", "log10"])
def test_a_gain_is_as_many_decibels_of_log_mel_distance(log):
    recorded = noise(8000)
    mel = dataclasses.replace(MEL, log=log)
    found = measures.measure(0.5 * recorded, recorded, RATE_HZ, mel)
    gain_db = 20.0 * math.log10(2.0)
    assert found["log_mel_distance_db"] == pytest.approx(gain_db, abs=1e-4)
    assert abs(found["level_difference_db"]) == pytest.approx(gain_db, abs=1e-4)


def test_the_stft_distance_is_its_definition_to_both_ends():
    recorded, sound = babble(0.2), noise(3200)
    wanted = stft_distance_by_the_definition(sound, recorded)
    assert measures.multi_resolution_stft_distance(sound, recorded) == pytest.approx(wanted, 1e-4)


@pytest.mark.parametrize("level", [1e-3, 0.03, 0.3])
def test_a_recording_without_sound_does_not_outweigh_the_others(level):
    silence, sound = np.zeros(RATE_HZ, np.float32), noise(RATE_HZ, level)
    assert measures.multi_resolution_stft_distance(silence, silence) == 0.0
    assert 1.0 < measures.multi_resolution_stft_distance(silence, sound) < 20.0
    assert 1.0 < measures.multi_resolution_stft_distance(sound, silence) < 12.0
    louder = measures.multi_resolution_stft_distance(4.0 * sound, sound)
    assert louder == pytest.approx(1.5 + math.log(4.0), abs=1e-3)


def test_pitch_is_compared_where_both_are_voiced_and_voicing_everywhere():
    recorded_f0_hz = np.array([0.0, 100.0, 100.0, 100.0, 0.0], np.float32)
    f0_hz = np.array([0.0, 100.0, 200.0, 0.0, 300.0], np.float32)
    assert measures.f0_error_cents(f0_hz, recorded_f0_hz) == pytest.approx(1200.0 / math.sqrt(2.0))
    assert measures.voicing_error(f0_hz, recorded_f0_hz) == pytest.approx(2 / 5)
    assert math.isnan(measures.f0_error_cents(np.zeros(5), recorded_f0_hz))


def test_a_frame_half_a_semitone_off_is_followed_and_one_beyond_is_not():
    recorded_f0_hz = np.full(4, 200.0)
    near, beyond = (200.0 * 2.0 ** (cents / 1200.0) for cents in (49.9, 50.1))
    f0_hz = np.array([near, beyond, 200.0**2 / near, 400.0])
    assert measures.f0_within_50_cents(f0_hz, recorded_f0_hz) == pytest.approx(2 / 4)
    voiced = np.array([0.0, 100.0, 100.0, 100.0])  # only frames that are voiced in both count
    assert measures.f0_within_50_cents(np.array([50.0, 100.0, 0.0, 120.0]), voiced) == 0.5
    assert math.isnan(measures.f0_within_50_cents(np.zeros(4), voiced))


def test_a_transposed_tone_is_off_by_its_interval():
    longer = np.concatenate([tone(200.0 * 2.0 ** (-7 / 12)), noise(3000)])  # whose end is cut off
    found = measures.measure(longer, tone(200.0), RATE_HZ, MEL)
    assert found["f0_error_cents"] == pytest.approx(700.0, abs=2.0)
    assert found["f0_within_50_cents"] == pytest.approx(0.0, abs=0.02)


def test_pesq_is_taken_at_16_khz_whatever_the_rate():
    recorded = babble(1.0, rate_hz=24_000)
    sound = recorded + noise(len(recorded), 0.01)
    assert measures.pesq(recorded, recorded, 24_000) == pytest.approx(4.644, abs=1e-3)
    resampled = [audio.resample(x, 24_000, RATE_HZ) for x in (sound, recorded)]
    assert measures.pesq(sound, recorded, 24_000) == measures.pesq(*resampled, RATE_HZ)


def test_a_sound_without_speech_has_the_lowest_pesq_and_no_intelligibility():
    recorded = babble(1.0)
    silence = np.full_like(recorded, 1.0 / 65535.0)  # what a file's zeros are read as
    for nothing in (silence, np.zeros_like(recorded)):
        assert measures.pesq(nothing, recorded, RATE_HZ) == 1.0
        assert measures.stoi(nothing, recorded, RATE_HZ) == pytest.approx(0.0, abs=0.2)
        for measured in (measures.pesq, measures.stoi):
            assert math.isnan(measured(recorded, nothing, RATE_HZ))


@pytest.mark.parametrize("samples", [1, 300, 3999])
def test_what_is_too_short_to_measure_is_not_a_number(samples):
    recorded = babble(0.5)[2000 : 2000 + samples]
    found = measures.measure(recorded, recorded, RATE_HZ, MEL)
    assert math.isnan(found["pesq"])
    assert math.isnan(found["stoi"])
    assert found["log_mel_distance_db"] == found["multi_resolution_stft_distance"] == 0.0


def test_stoi_needs_speech_and_not_only_time():
    recorded = np.concatenate([babble(0.3), np.zeros(RATE_HZ, np.float32)])
    assert math.isnan(measures.stoi(recorded, recorded, RATE_HZ))
    assert measures.stoi(babble(0.8), babble(0.8), RATE_HZ) == pytest.approx(1.0)


def test_more_utterances_than_the_package_can_hold_are_judged_piece_by_piece():
    recorded = bursts(40.0)
    assert measures.pesq(recorded, recorded, RATE_HZ) == pytest.approx(4.644, abs=1e-3)
    half = np.where(np.arange(len(recorded)) < len(recorded) // 2, recorded, 0.0)
    assert measures.pesq(half, recorded, RATE_HZ) == pytest.approx((4.644 + 1.0) / 2, abs=1e-3)


@pytest.mark.parametrize(
    ("sound", "recorded", "message"),
    [
        (np.zeros((2, 9)), np.zeros(9), r"`sound` must have the shape \[samples\], got \(2, 9\)"),
        (np.zeros(9), np.zeros(0), r"`recorded` must have the shape \[samples\], got \(0,\)"),
        (np.array([0.0, np.nan]), np.zeros(2), "`sound` must be finite, got NaN or infinity"),
    ],
)
def test_what_is_no_sound_is_refused(sound, recorded, message):
    with pytest.raises(ValueError, match=message):
        measures.measure(sound, recorded, RATE_HZ, MEL)


def test_a_mel_of_another_rate_is_refused():
    with pytest.raises(ValueError, match="`mel` must be at 24000 Hz, got 16000 Hz"):
        measures.measure(noise(9), noise(9), 24_000, MEL)


# The residual's kurtosis tells pulses from noise, and from a smear of the same spectrum


HOP = 200
VOICED = np.full(80, 125.0)
# Two resonances, as of a vowel.
POLES = [0.97 * np.exp(2j * np.pi * hz / RATE_HZ) for hz in (700.0, 1800.0)]
VOWEL = np.poly([*POLES, *np.conj(POLES)]).real


def kurtosis(sound, f0_hz=VOICED, rate_hz=RATE_HZ, hop=HOP):
    return residual_kurtosis(sound.astype(np.float32), f0_hz, rate_hz, hop)


def white(seed=0, samples=RATE_HZ):
    return 0.1 * np.random.default_rng(seed).standard_normal(samples)


def pulses(period, samples=RATE_HZ):
    return 0.5 * (np.arange(samples) % period == 0)


def vowel_voice(period=128, seed=0):
    return scipy.signal.lfilter([0.05], VOWEL, pulses(period) + 0.01 * white(seed))


def with_random_phases(sound, seed=0):
    """The magnitudes of the whole sound's spectrum, with other phases."""
    spectrum = np.fft.rfft(sound)
    cycles = np.random.default_rng(seed).random(len(spectrum))
    return np.fft.irfft(np.abs(spectrum) * np.exp(2j * np.pi * cycles), len(sound))


def test_gaussian_noise_has_three_whatever_filter_coloured_it():
    assert kurtosis(white()) == pytest.approx(3.0, abs=0.1)
    assert kurtosis(scipy.signal.lfilter([1.0], VOWEL, white())) == pytest.approx(3.0, abs=0.1)


def test_a_train_of_impulses_has_about_its_period():
    for period in (64, 128):
        # One sample of `period` is large: (1 / p) / (1 / p)^2 = p.
        assert kurtosis(pulses(period) + 1e-4 * white()) == pytest.approx(period, rel=0.25)


def test_random_phases_smear_the_pulses_of_a_voice():
    pulsed, smeared = kurtosis(vowel_voice()), kurtosis(with_random_phases(vowel_voice()))
    assert pulsed > 20.0 and smeared < 0.3 * pulsed  # the vocal tract is taken off first


def test_only_voiced_frames_are_looked_at():
    half = np.where(np.arange(RATE_HZ) < RATE_HZ // 2, white(), pulses(128) + 1e-4 * white())
    first, second = np.zeros(80), np.zeros(80)
    first[5:35], second[45:75] = 120.0, 120.0
    assert kurtosis(half, first) == pytest.approx(3.0, abs=0.2)
    assert kurtosis(half, second) > 50.0


@pytest.mark.parametrize(
    ("sound", "f0_hz"),
    [
        (white(), np.zeros(80)),  # nothing voiced
        (np.zeros(RATE_HZ), VOICED),  # nothing but silence
        (white(samples=300), VOICED[:2]),  # no window within the sound
    ],
)
def test_nothing_to_measure_is_not_a_number(sound, f0_hz):
    assert math.isnan(kurtosis(sound, f0_hz))


# Predicted opinion scores


can_predict = pytest.mark.skipif(not available("plcmos"), reason="needs `listening`")
SCORES = pytest.mark.parametrize("score", [dnsmos_p808, plcmos])


@pytest.fixture(scope="module")
def speech():
    path = min(shipped.recordings_folder().glob("dev/*.flac"))
    return audio.read(path, RATE_HZ)


def noise_at(samples, level):
    return np.random.default_rng(0).normal(0.0, level, samples).astype(np.float32)


@can_predict
@SCORES
def test_speech_is_better_than_noise_and_has_its_score_every_time_and_at_any_rate(score, speech):
    noisy = speech + noise_at(len(speech), 0.02)
    best, *others = (score(x, RATE_HZ) for x in (speech, noisy, noise_at(len(speech), 0.1)))
    assert 5.0 > best > max(others) + 0.5 and min(others) > 0.5
    assert score(speech, RATE_HZ) == best
    faster = audio.resample(speech, RATE_HZ, 24_000)
    assert score(faster, 24_000) == pytest.approx(best, abs=0.1)


@can_predict
@SCORES
def test_silence_has_a_finite_score_and_a_tenth_of_a_second_none(score, speech):
    assert math.isfinite(score(np.zeros(RATE_HZ, np.float32), RATE_HZ))
    assert math.isnan(score(speech[:1600], RATE_HZ))


@can_predict
@pytest.mark.parametrize("seconds", [2.0, 9.5, 11.0])
def test_dnsmos_is_the_score_of_its_own_package(speech, seconds):
    pytest.importorskip("librosa")
    pytest.importorskip("requests")
    from speechmos import dnsmos

    sound = np.tile(speech, 8)[: round(seconds * RATE_HZ)]
    expected = dnsmos.run(sound, RATE_HZ)["p808_mos"]
    assert dnsmos_p808(sound, RATE_HZ) == pytest.approx(expected, abs=1e-4)


@can_predict
def test_plcmos_is_the_score_of_its_own_package_but_for_its_raters(speech):
    from speechmos import plcmos as package

    scores = [package.run(speech, RATE_HZ)["plcmos"] for _ in range(3)]
    assert plcmos(speech, RATE_HZ) == pytest.approx(np.mean(scores), abs=0.2)


# Packages that are missing


NOISE = np.random.default_rng(0).normal(0.0, 0.1, 8000).astype(np.float32)


@pytest.fixture
def without(monkeypatch):
    """Makes as if only packages other than these were installed."""

    def without(*missing):
        monkeypatch.setattr(packages, "is_installed", lambda package: package not in missing)

    return without


def test_what_needs_a_missing_package_is_left_out_and_the_rest_is_measured(without):
    without("pesq", "pyworld", "onnxruntime")
    assert list(measure(NOISE, NOISE, 16_000, MEL)) == [
        "log_mel_distance_db",
        "multi_resolution_stft_distance",
        "stoi",
        "level_difference_db",
    ]
    assert packages.list_unavailable() == {
        "quality": [
            "pesq",
            "f0_within_50_cents",
            "f0_error_cents",
            "voicing_error",
            "residual_kurtosis",
        ],
        "listening": ["dnsmos_p808", "plcmos"],
    }


def test_one_line_names_the_measures_and_the_extra(without):
    without("speechmos")
    line = packages.describe_unavailable()
    assert "dnsmos p808, plcmos (pip install 'onepass[listening]')" in line
    assert "\n" not in line and "quality" not in line


def test_nothing_is_said_when_nothing_is_missing(without):
    without()
    assert packages.list_unavailable() == {} and packages.describe_unavailable() == ""


def test_f0_without_its_package_is_a_mistake_with_a_remedy(without):
    without("pyworld")
    with pytest.raises(UserError, match=r"needs pyworld: pip install 'onepass\[quality\]'"):
        fundamental_frequency(NOISE, PitchConvention(16_000, 200))
