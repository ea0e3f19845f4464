"""A recording's level: brought to the model's, and given back."""

import numpy as np
import pytest

from wavenet.data import audio
from wavenet.data.audio import (
    NEAR_DB,
    at_recorded_level,
    bent,
    gain_of,
    level_gain_db,
    level_of,
    recorded_frames,
)

LEVEL_DB, GAIN_DB = -25.0, 4.0


def noise(level_db, samples=4000):
    wave = np.random.default_rng(0).normal(size=samples).astype(np.float32)
    return audio.amplify(wave, level_db - audio.rms_db(wave))


@pytest.mark.parametrize("stored_db", [-33.0, -29.0, -25.0])
def test_a_recording_near_those_of_training_gets_their_gain(stored_db):
    assert level_gain_db(noise(stored_db), GAIN_DB, LEVEL_DB) == GAIN_DB


@pytest.mark.parametrize(("stored_db", "side"), [(-60.0, -1), (-16.0, 1)])
def test_a_quieter_or_louder_one_is_brought_near_them(stored_db, side):
    gain_db = level_gain_db(noise(stored_db), GAIN_DB, LEVEL_DB)
    brought = audio.rms_db(audio.amplify(noise(stored_db), gain_db))
    assert brought == pytest.approx(LEVEL_DB + side * NEAR_DB, abs=0.01)


def test_no_peak_is_amplified_above_full_scale_whatever_is_known_of_the_level():
    peaky = np.zeros(4000, np.float32)
    peaky[7] = 0.97
    for level_db in (None, LEVEL_DB, 0.0):
        assert level_gain_db(peaky, GAIN_DB, level_db) == 0.0
    assert level_gain_db(peaky, -1.0, None) == -1.0


def test_silence_is_not_brought_to_a_level():
    assert level_gain_db(np.zeros(100, np.float32), GAIN_DB, LEVEL_DB) == GAIN_DB


def test_what_is_known_of_the_level_is_measured_or_else_aimed_at():
    spec = {"config": {"data": {"level_db": -23.0}}}
    assert level_of(spec) == -23.0 and level_of({**spec, "level_db": -25.1}) == -25.1
    assert level_of({}) is None


def test_a_sound_gets_the_level_back_and_stays_in_full_scale_in_any_chunks():
    sound = noise(-20.0)
    quieter = at_recorded_level(sound, 6.0)
    np.testing.assert_allclose(quieter, audio.amplify(sound, -6.0))
    louder = at_recorded_level(sound, -18.0)
    assert np.abs(louder).max() <= 1.0 and audio.rms_db(louder) < -2.0
    chunks = [at_recorded_level(chunk, -18.0) for chunk in np.split(sound, 8)]
    np.testing.assert_array_equal(np.concatenate(chunks), louder)


def test_bending_leaves_what_is_below_the_knee_and_keeps_the_order():
    wave = np.linspace(-3, 3, 1001, dtype=np.float32)
    made = bent(wave)
    near = np.abs(wave) <= 0.95
    np.testing.assert_array_equal(made[near], wave[near])
    assert np.all(np.diff(made) >= 0) and np.abs(made).max() <= 1.0


def test_frames_of_a_recording_keep_its_gain_in_a_slice_and_lose_it_as_plain_ones():
    frames = recorded_frames(np.zeros([6, 3]), 4.5)
    assert gain_of(frames) == gain_of(frames[:2]) == 4.5
    assert gain_of(np.asarray(frames)) == gain_of(None) == 0.0
