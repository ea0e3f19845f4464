"""Mel frames, fundamental frequency, and plots of sound."""

import json

import numpy as np
import pytest

from wavenet import plots
from wavenet.features import conventions, frames
from wavenet.features.conventions import MelConvention, PitchConvention

SMALL = MelConvention(
    sample_rate_hz=16000, hop_samples=128, window_samples=400, fft_size=512, bands=20, low_hz=50.0
)


def noise(samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def harmonic_tone(f0_hz, rate_hz, seconds=0.6):
    time = np.arange(round(seconds * rate_hz)) / rate_hz
    return 0.2 * sum(np.sin(2 * np.pi * f0_hz * k * time) / k for k in (1, 2, 3, 4))


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
    return {
        name: value for name, value in convention.to_dict().items() if name not in conventions.FIXED
    }


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
        ({"log": "log2"}, "`log` must be one of"),
        ({"floor": 0.0}, "`floor` must be above 0 and below 1"),
    ],
)
def test_a_convention_that_cannot_be_computed_is_refused(change, why):
    with pytest.raises(ValueError, match=why):
        MelConvention.from_dict({**SMALL.to_dict(), **change})
    with pytest.raises(ValueError, match="leave an FFT bin in every band"):
        frames.mel_spectrogram(noise(900), MelConvention(bands=400))


@pytest.mark.parametrize(
    ("f0_hz", "rate_hz", "method"),
    [(80.0, 16000, "dio"), (220.0, 24000, "dio"), (400.0, 16000, "dio"), (150.0, 16000, "harvest")],
)
def test_fundamental_frequency_of_a_tone_is_within_two_percent(f0_hz, rate_hz, method):
    found_hz, voiced = frames.fundamental_frequency(
        harmonic_tone(f0_hz, rate_hz), PitchConvention(rate_hz, 256, method=method)
    )
    inner = slice(5, -5)
    assert voiced[inner].all()
    np.testing.assert_allclose(found_hz[inner], f0_hz, rtol=0.02)


@pytest.mark.parametrize("samples", [1, 100, 5000, 5120, 5121])
def test_silence_is_unvoiced_on_the_frames_of_mel(samples):
    found_hz, voiced = frames.fundamental_frequency(np.zeros(samples), PitchConvention(16000, 128))
    assert len(found_hz) == len(frames.mel_spectrogram(np.zeros(samples), SMALL))
    assert not voiced.any() and not found_hz.any()


def test_pitch_frames_lie_where_mel_frames_lie():
    # A rising tone: at frame f it has the frequency of sample f * hop + hop / 2.
    rate_hz, hop_samples = 16000, 800
    time = np.arange(16000) / rate_hz
    sweep = np.sin(2 * np.pi * (100 * time + 100 * time**2))
    found_hz, _ = frames.fundamental_frequency(0.5 * sweep, PitchConvention(rate_hz, hop_samples))
    centres = (np.arange(20) * hop_samples + hop_samples / 2) / rate_hz
    assert len(found_hz) == 20
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
