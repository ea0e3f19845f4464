"""Sound files and levels, channels that cancel each other, files that hold less than they say."""

import os
import struct

import numpy as np
import pytest
import soundfile

from onepass.foundation.rules import UserError
from wavenet.data import audio
from wavenet.data.audio import (
    NEAR_DB,
    at_recorded_level,
    gain_of,
    level_gain_db,
    level_of,
    recorded_frames,
)
from wavenet.data.recordings import scan

RATE_HZ = 16000


def tone(frequency_hz, seconds=0.5, rate_hz=RATE_HZ, amplitude=0.5):
    time = np.arange(round(seconds * rate_hz)) / rate_hz
    return (amplitude * np.sin(2 * np.pi * frequency_hz * time)).astype(np.float32)


def every_sample():
    return np.arange(-32768, 32768, dtype=np.int16)


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_samples_come_back_exactly_and_a_waveform_as_its_nearest_samples(tmp_path, name):
    audio.write(tmp_path / name, every_sample(), RATE_HZ)
    np.testing.assert_array_equal(audio.to_int16(audio.read(tmp_path / name)), every_sample())
    audio.write(tmp_path / name, tone(440), RATE_HZ)
    stored, rate_hz = soundfile.read(tmp_path / name, dtype="int16")
    assert rate_hz == RATE_HZ
    np.testing.assert_array_equal(stored, np.rint(tone(440).astype(np.float64) * 32767.5 - 0.5))


def test_a_waveform_is_the_scaled_level_of_its_sample():
    level = every_sample().astype(np.int64) + 32768
    waveform = audio.from_int16(every_sample())
    np.testing.assert_allclose(waveform, 2 * level / 65535 - 1, atol=1e-7)
    # In float32, as a linear likelihood encodes it.
    encoded = np.rint((waveform + np.float32(1)) / np.float32(2) * np.float32(65535))
    np.testing.assert_array_equal(encoded, level)


def test_a_waveform_beyond_full_scale_is_clipped_not_wrapped_and_said(tmp_path):
    said = r"\.wav: 2 of 3 samples are beyond \[-1, 1\] and were clipped"
    with pytest.warns(UserWarning, match=said):
        audio.write(tmp_path / "a.wav", np.array([-3.0, 0.0, 3.0]), RATE_HZ)
    with pytest.warns(UserWarning, match=said), audio.writing(tmp_path / "b.wav", RATE_HZ) as put:
        put(np.array([-3.0, 0.0]))
        put(np.array([32767.0]))
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()
    audio.write(tmp_path / "c.wav", np.array([-1.0, 1.0, 1.00001]), RATE_HZ)  # nearest samples
    np.testing.assert_array_equal(
        soundfile.read(tmp_path / "a.wav", dtype="int16")[0], [-32768, 0, 32767]
    )


def test_a_stereo_file_at_96_khz_becomes_the_same_tone_at_24_khz(tmp_path):
    sound = tone(1000, rate_hz=96000)
    soundfile.write(tmp_path / "a.wav", np.stack([sound, sound], 1), 96000, subtype="PCM_24")
    read = audio.read_sound(tmp_path / "a.wav")
    assert read.notes(24000) == ["is resampled from 96,000 Hz to 24,000 Hz"]
    assert read.notes(96000) == read.notes() == []
    got = audio.read(tmp_path / "a.wav", 24000)
    wanted = tone(1000, rate_hz=24000)
    assert got.shape == wanted.shape and got.dtype == np.float32
    np.testing.assert_allclose(got[500:-500], wanted[500:-500], atol=1e-4)


def bad_file(folder, kind):
    path = folder / f"{kind}.wav"
    if kind == "zero":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("This is no sound. " * 100)
    elif kind == "empty":
        soundfile.write(path, np.zeros(0), RATE_HZ)
    elif kind == "folder":
        path.mkdir()
    elif kind == "cut":
        soundfile.write(
            path, np.random.default_rng(0).normal(0, 0.1, 20000), RATE_HZ, format="FLAC"
        )
        path.write_bytes(path.read_bytes()[:9000])
    return path


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("missing", "no such file"),
        ("zero", "holds zero bytes"),
        ("text", "cannot be read as sound"),
        ("empty", "holds no samples"),
        ("folder", "is not a file"),
        ("cut", "cannot be read as sound"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path, kind, why):
    path = bad_file(tmp_path, kind)
    with pytest.raises(audio.AudioError, match=why) as caught:
        audio.read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    assert text.count(str(path)) == 1
    assert isinstance(caught.value, ValueError)


def test_a_file_name_that_is_no_text_is_read_and_can_be_shown(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9\n.wav")
    with pytest.raises(audio.AudioError) as caught:
        audio.read(path)
    assert str(caught.value).isprintable()
    str(caught.value).encode("utf-8")
    audio.write(path, tone(440), RATE_HZ)
    assert len(audio.read(path)) == 8000


@pytest.mark.parametrize(
    ("name", "why"),
    [("a.xyz", "must end in .wav or .flac"), ("no/a.wav", "Cannot write .*: No such file")],
)
def test_a_file_that_cannot_be_written_says_why(tmp_path, name, why):
    with pytest.raises(UserError, match=why):
        audio.write(tmp_path / name, tone(440), RATE_HZ)


@pytest.mark.parametrize(
    ("waveform", "why"),
    [
        (np.zeros((2, 3)), r"\[samples\], got float64 \[2, 3\]"),
        (np.array([0.0, np.nan]), "must be finite .*, got nan at sample 1"),
        (np.ma.masked_less(np.array([-0.5, 0.5]), 0.0), "must have no masked values"),
        (np.zeros(3, np.int32), "must be floating or int16, got int32"),
    ],
)
def test_what_is_no_sound_is_not_written(tmp_path, waveform, why):
    with pytest.raises(ValueError, match=why):
        audio.write(tmp_path / "a.wav", waveform, RATE_HZ)
    assert list(tmp_path.iterdir()) == []


def test_levels_are_those_of_a_sine():
    sound = tone(400, amplitude=0.25)
    assert audio.peak_db(sound) == pytest.approx(-12.04, abs=0.01)
    assert audio.rms_db(sound) == pytest.approx(-15.05, abs=0.01)
    assert audio.peak_db(np.zeros(4)) == audio.LOWEST_DB


def test_clipping_of_one_channel_is_seen(tmp_path):
    loud, quiet = np.full(1000, 1.5), np.zeros(1000)
    loud[:100] = 0.999  # not at full scale
    soundfile.write(tmp_path / "a.wav", np.stack([loud, quiet], 1), RATE_HZ)
    assert audio.read_sound(tmp_path / "a.wav").clipped_share == pytest.approx(0.45)


def test_flac_bits_are_those_of_the_file_it_would_be(tmp_path):
    samples = audio.to_int16(tone(440) + np.random.default_rng(0).normal(0, 1e-3, 8000))
    audio.write(tmp_path / "a.flac", samples, RATE_HZ)
    size = (tmp_path / "a.flac").stat().st_size
    assert audio.flac_bits_per_sample(samples, RATE_HZ) == pytest.approx(8 * size / 8000)


@pytest.mark.parametrize("values", [[np.inf, -np.inf], [3e38, 3e38], [np.nan, 0.0]])
def test_a_file_of_infinities_is_refused_without_a_warning(tmp_path, values):
    stereo = np.tile(np.array(values, np.float32), (400, 1))
    soundfile.write(tmp_path / "a.wav", stereo, 8000, subtype="FLOAT")
    with pytest.raises(audio.AudioError, match="holds NaN or infinite samples"):
        audio.read(tmp_path / "a.wav")


@pytest.mark.parametrize("rate_hz", [1, 999, 2_000_000])
def test_a_rate_that_no_recording_has_is_refused_before_it_is_resampled(tmp_path, rate_hz):
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(440), RATE_HZ)
    with_header(path, 24, rate_hz)
    with pytest.raises(audio.AudioError, match=rf"says it has {rate_hz:,} samples a second"):
        audio.read(path, RATE_HZ)


def voice(seed=0, samples=8000):
    return np.random.default_rng(seed).normal(0, 0.1, samples)


def stereo(path, *channels):
    soundfile.write(path, np.stack(channels, 1), RATE_HZ, subtype="FLOAT")
    return audio.read_sound(path)


def test_of_channels_in_antiphase_the_louder_is_taken_and_it_is_said(tmp_path):
    sound = stereo(tmp_path / "a.wav", voice(), -1.05 * voice())
    assert sound.notes() == ["its 2 channels cancel each other, the loudest is taken"]
    np.testing.assert_allclose(sound.waveform, -1.05 * voice(), atol=4e-5)
    eight = stereo(tmp_path / "a.wav", voice(), *[np.zeros(8000)] * 7)
    assert not eight.cancelled  # one channel is enough


@pytest.mark.parametrize(
    "other", [voice(), voice(1), np.zeros(8000), -0.3 * voice()], ids=["same", "new", "none", "few"]
)
def test_channels_that_do_not_cancel_are_averaged_without_a_word(tmp_path, other):
    sound = stereo(tmp_path / "a.wav", voice(), other)
    assert sound.notes() == []
    np.testing.assert_allclose(sound.waveform, (voice() + other) / 2, atol=4e-5)


def with_header(path, place, number):
    """Writes a number of four bytes into the header of a WAV file."""
    data = bytearray(path.read_bytes())
    data[place : place + 4] = struct.pack("<I", number)
    path.write_bytes(data)


def test_a_folders_report_notes_all_of_it(tmp_path):
    for seed, name in enumerate(("a.wav", "b.wav", "cut.wav")):
        audio.write(tmp_path / name, voice(seed), RATE_HZ)
    with_header(tmp_path / "cut.wav", 40, 2 * 24_000)
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


# A recording's level is brought to the model's, and given back


LEVEL_DB, GAIN_DB = -25.0, 4.0


def noise_at(level_db, samples=4000):
    wave = np.random.default_rng(0).normal(size=samples).astype(np.float32)
    return audio.amplify(wave, level_db - audio.rms_db(wave))


PEAK = np.where(np.arange(4000) == 7, 0.97, 0.0).astype(np.float32)


@pytest.mark.parametrize(
    ("wave", "gain_db", "level_db", "expected"),
    [
        *((noise_at(stored_db), GAIN_DB, LEVEL_DB, GAIN_DB) for stored_db in (-33, -29, -25)),
        (np.zeros(100, np.float32), GAIN_DB, LEVEL_DB, GAIN_DB),
        *((PEAK, GAIN_DB, level_db, 0.0) for level_db in (None, LEVEL_DB, 0.0)),
        (PEAK, -1.0, None, -1.0),
    ],
)
def test_a_recording_near_those_of_training_gets_their_gain_up_to_full_scale(
    wave, gain_db, level_db, expected
):
    assert level_gain_db(wave, gain_db, level_db) == expected


@pytest.mark.parametrize(("stored_db", "side"), [(-60.0, -1), (-16.0, 1)])
def test_a_quieter_or_louder_one_is_brought_near_them(stored_db, side):
    gain_db = level_gain_db(noise_at(stored_db), GAIN_DB, LEVEL_DB)
    brought = audio.rms_db(audio.amplify(noise_at(stored_db), gain_db))
    assert brought == pytest.approx(LEVEL_DB + side * NEAR_DB, abs=0.01)


def test_what_is_known_of_the_level_is_measured_or_else_aimed_at():
    spec = {"config": {"data": {"level_db": -23.0}}}
    assert level_of(spec) == -23.0 and level_of({**spec, "level_db": -25.1}) == -25.1
    assert level_of({}) is None


def test_a_sound_gets_the_level_back_and_stays_in_full_scale_in_any_chunks():
    sound = noise_at(-20.0)
    quieter = at_recorded_level(sound, 6.0)
    np.testing.assert_allclose(quieter, audio.amplify(sound, -6.0))
    louder = at_recorded_level(sound, -18.0)
    assert np.abs(louder).max() <= 1.0 and audio.rms_db(louder) < -2.0
    chunks = [at_recorded_level(chunk, -18.0) for chunk in np.split(sound, 8)]
    np.testing.assert_array_equal(np.concatenate(chunks), louder)


def test_frames_of_a_recording_keep_its_gain_in_a_slice_and_lose_it_as_plain_ones():
    frames = recorded_frames(np.zeros([6, 3]), 4.5)
    assert gain_of(frames) == gain_of(frames[:2]) == 4.5
    assert gain_of(np.asarray(frames)) == gain_of(None) == 0.0
