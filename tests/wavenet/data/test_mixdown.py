"""Channels that cancel each other, and files that hold less than they say."""

import struct

import numpy as np
import pytest
import soundfile

from wavenet.data import audio, scan

RATE_HZ = 16_000


def voice(seed=0, samples=8000):
    return np.random.default_rng(seed).normal(0, 0.1, samples)


def stereo(path, *channels):
    soundfile.write(path, np.stack(channels, 1), RATE_HZ, subtype="FLOAT")
    return audio.read_sound(path)


def test_of_channels_in_antiphase_the_louder_is_taken_and_it_is_said(tmp_path):
    sound = stereo(tmp_path / "a.wav", voice(), -1.05 * voice())
    assert sound.notes() == ["its 2 channels cancel each other, the loudest is taken"]
    np.testing.assert_allclose(sound.waveform, -1.05 * voice(), atol=4e-5)


@pytest.mark.parametrize(
    "other", [voice(), voice(1), np.zeros(8000), -0.3 * voice()], ids=["same", "new", "none", "few"]
)
def test_channels_that_do_not_cancel_are_averaged_without_a_word(tmp_path, other):
    sound = stereo(tmp_path / "a.wav", voice(), other)
    assert sound.notes() == []
    np.testing.assert_allclose(sound.waveform, (voice() + other) / 2, atol=4e-5)


def test_one_channel_of_eight_is_enough(tmp_path):
    assert not stereo(tmp_path / "a.wav", voice(), *[np.zeros(8000)] * 7).cancelled


def said_to_last(path, samples):
    """A WAV file whose header promises so many samples of 16 bits."""
    data = bytearray(path.read_bytes())
    data[40:44] = struct.pack("<I", 2 * samples)
    path.write_bytes(data)


def test_a_header_that_promises_more_than_there_is_is_noted(tmp_path):
    path = tmp_path / "a.wav"
    audio.write(path, voice(), RATE_HZ)
    said_to_last(path, 24_000)
    sound = audio.read_sound(path)
    assert len(sound.waveform) == 8000
    assert sound.notes() == ["is cut off: its header promises 1.50 s, it has 0.50 s"]


def test_a_stream_whose_end_was_not_known_is_whole(tmp_path):
    path = tmp_path / "a.wav"
    audio.write(path, voice(), RATE_HZ)
    for size in (0xFFFFFFFF, 0x7FFFFFFF):
        data = bytearray(path.read_bytes())
        data[40:44] = struct.pack("<I", size)
        path.write_bytes(data)
        assert audio.read_sound(path).notes() == []


def test_another_rate_is_noted(tmp_path):
    path = tmp_path / "a.wav"
    audio.write(path, voice(), 22_050)
    sound = audio.read_sound(path)
    assert sound.notes(16_000) == ["is resampled from 22,050 Hz to 16,000 Hz"]
    assert sound.notes(22_050) == sound.notes() == []


def test_a_folders_report_notes_all_of_it(tmp_path):
    for seed, name in enumerate(("a.wav", "b.wav", "cut.wav")):
        audio.write(tmp_path / name, voice(seed), RATE_HZ)
    said_to_last(tmp_path / "cut.wav", 24_000)
    audio.write(tmp_path / "fine.wav", voice(7), 22_050)
    stereo(tmp_path / "anti.wav", voice(9), -voice(9))
    for name in ("x.m4a", "y.m4a", "z.aac", "p.heic", "NOTES.md", "LICENSE"):
        (tmp_path / name).write_bytes(b"no sound that is read")
    report = scan(tmp_path, RATE_HZ)
    assert not report.left_out
    said = "\n".join(report.lines())
    for note in (
        "cut off, with less sound than the header promises: 1: cut.wav",
        "channels cancel each other, so only the loudest is used: 1: anti.wav",
        "resampled from 22,050 Hz to 16,000 Hz: 1: fine.wav",
        "skipped, of an unknown kind: 2 .m4a, 1 .heic, 1 .aac",
    ):
        assert note in said
