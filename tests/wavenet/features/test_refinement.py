"""Refinement: chunks change nothing, the mel comes nearer, a sound of that mel stays."""

import numpy as np
import pytest

from wavenet.config import MelConvention
from wavenet.features.frames import Refiner, above_silence, mel_spectrogram, refine_chunks

CONVENTION = MelConvention(16_000, 64, 256, 256, bands=20)
FRAMES = 40


def sound(seed: int) -> np.ndarray:
    """A voice of six harmonics in noise, float32 [frames * hop]."""
    time = np.arange(FRAMES * 64) / 16_000
    voice = sum(np.sin(2 * np.pi * 170 * n * time) / n for n in range(1, 7))
    noise = np.random.default_rng(seed).normal(0, 0.1, time.size)
    return (0.1 * (voice + noise)).astype(np.float32)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("chunk", [50, 700, 5000])
def test_chunks_change_nothing(passes, chunk):
    refiner, mel = Refiner(CONVENTION, passes), mel_spectrogram(sound(0), CONVENTION)
    rows = np.stack([sound(1), sound(2)])
    pieces = (rows[:, first : first + chunk] for first in range(0, rows.shape[1], chunk))
    frames = np.pad(above_silence(mel, CONVENTION), [(0, 0), (0, 1)])  # with a pitch, too
    got = np.concatenate(list(refine_chunks(pieces, frames, refiner)), 1)
    whole = np.stack([refiner(row, mel) for row in rows])
    np.testing.assert_allclose(got, whole, atol=1e-5)


def test_the_look_ahead_is_a_window_a_pass():
    refiner, mel = Refiner(CONVENTION, 2), mel_spectrogram(sound(0), CONVENTION)
    given = iter([sound(1)[None, : 20 * 64], sound(1)[None, 20 * 64 :]])
    first = next(refine_chunks(given, above_silence(mel, CONVENTION), refiner))
    assert first.shape[1] == (20 - refiner.reach_frames) * 64
    assert refiner.reach_frames * 64 == 2 * CONVENTION.window_samples


def test_each_pass_brings_the_mel_nearer_to_the_one_wanted_where_a_sound_stays():
    mel = mel_spectrogram(sound(0), CONVENTION)
    start = 0.5 * sound(1) + 0.05 * np.random.default_rng(9).normal(size=FRAMES * 64)
    made = [start.astype(np.float32)]
    made += [Refiner(CONVENTION, passes)(made[0], mel) for passes in (1, 3)]
    away = [np.abs(mel_spectrogram(each, CONVENTION) - mel).mean() for each in made]
    assert away[2] < away[1] < 0.5 * away[0]
    np.testing.assert_allclose(Refiner(CONVENTION, 2)(sound(0), mel), sound(0), atol=1e-3)
    with pytest.raises(ValueError, match="`passes` must be at least 1, got 0"):
        Refiner(CONVENTION, 0)
