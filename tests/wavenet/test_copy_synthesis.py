"""Every system is measured on the same recordings in the same way."""

import numpy as np
import pytest

from onepass.foundation.rules import UserError
from wavenet.config import MelConvention
from wavenet.copy_synthesis import (
    baselines,
    compare,
    has_sounds,
    read_sounds,
    row_of,
    synthesised_samples,
    table,
)
from wavenet.data import audio

RATE_HZ = 16_000
MEL = MelConvention(RATE_HZ, hop_samples=200)


def voice(seconds, f0_hz, seed):
    time = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    pitch_hz = f0_hz * (1.0 + 0.1 * np.sin(2.0 * np.pi * 1.1 * time))
    phase = 2.0 * np.pi * np.cumsum(pitch_hz) / RATE_HZ
    sound = sum(np.sin(k * phase) / k for k in range(1, 20))
    noise = np.random.default_rng(seed).normal(0.0, 3e-3, len(time))
    return (0.1 * sound * np.clip(np.sin(6.0 * np.pi * time), 0.0, None) + noise).astype(np.float32)


ITEMS = [
    {"name": "dev/a.flac", "waveform": voice(0.6, 150.0, 0)},
    {"name": "dev/b.flac", "waveform": voice(0.9, 220.0, 1)},
]


@pytest.fixture(scope="module")
def compared():
    return compare(baselines(MEL, seed=0), ITEMS, MEL)


def mean(compared, system, measure):
    return compared[system]["measures"][measure]["mean"]


def test_griffin_lim_that_stays_with_the_mel_comes_closer_to_it(compared):
    plain, consistent = (
        mean(compared, name, "log_mel_distance_db")
        for name in ("griffin_lim", "griffin_lim_mel_consistent")
    )
    assert consistent < 0.9 * plain


def test_three_seconds_of_a_recording_are_synthesised_at_most():
    lengths = []

    def system(item, length):
        lengths.append(length)
        return item["waveform"][:length]

    items = [ITEMS[0], {"name": "dev/c.flac", "waveform": voice(4.0, 220.0, 1)}]
    expected = [len(ITEMS[0]["waveform"]), 3 * RATE_HZ]
    assert [synthesised_samples(item, RATE_HZ) for item in items] == expected
    compare({"any": system}, items, MEL)
    assert lengths[-2:] == expected


def test_the_table_has_every_system_and_every_measure(compared):
    text = "\n".join(table({**compared, "a model": compared["griffin_lim"]}))
    for name in ("griffin lim", "griffin lim mel consistent", "recording", "a model"):
        assert name in text
    assert f"Over {len(ITEMS)} recordings, 95% intervals: Student's t" in text
    for name in compared["recording"]["measures"]:
        assert name.replace("_", " ") in text
    assert max(len(line) for line in text.splitlines()) < 120


def test_a_recording_without_a_value_is_counted_in_the_table():
    measures = {"f0": {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 3, "undefined": 2}}
    text = "\n".join(table({"a": {"measures": measures, "real_time_factor": 1.0}}))
    assert "0.500 [0.400, 0.600] n 3" in text and "Over 5 recordings" in text


def test_recordings_have_noise_of_their_own():
    rows, twice = [], [ITEMS[0], ITEMS[0]]

    def system(item, length):
        rows.append(row_of(item))
        return baselines(MEL, seed=0)["griffin_lim"](item, length)

    measures = compare({"any": system}, twice, MEL)["any"]["measures"]
    assert rows == [0, 0, 1]  # it is compiled on the first
    distance = measures["log_mel_distance_db"]
    assert distance["low"] < distance["mean"] < distance["high"]


def test_sounds_of_a_folder_have_the_level_and_length_of_the_recording(tmp_path):
    assert not has_sounds(tmp_path)
    audio.write(tmp_path / "a.wav", 0.25 * ITEMS[0]["waveform"][:-50], RATE_HZ)
    assert has_sounds(tmp_path)
    system = read_sounds(tmp_path, RATE_HZ)
    length = len(ITEMS[0]["waveform"])
    sound = system(ITEMS[0], length)
    assert sound.shape == (length,) and not sound[-50:].any()
    np.testing.assert_allclose(sound[:-50], ITEMS[0]["waveform"][:-50], atol=2e-3)
    with pytest.raises(UserError, match="has no sound named b"):
        system(ITEMS[1], length)
