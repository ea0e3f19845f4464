"""Sound behind the end that a header or a decoder's count gives is read, or it is said."""

import io
import os
import struct

import numpy as np
import pytest
import soundfile

from wavenet.data import audio, decoding
from wavenet.data.audio import SoundFile, mono_blocks, properties
from wavenet.data.recordings import scan

RATE_HZ = 16000


def voice(seed=0, seconds=4.0):
    """Return noise whose first half is nearly silent, so that its frames are of many lengths."""
    sound = np.random.default_rng(seed).normal(0, 0.1, round(seconds * RATE_HZ))
    sound[: sound.size // 2] *= 1e-3
    return sound.astype(np.float32)


def encoded(kind, subtype, sound, **options):
    memory = io.BytesIO()
    soundfile.write(memory, sound, options.pop("rate_hz", RATE_HZ), subtype, format=kind, **options)
    return memory.getvalue()


def mp3(seed=0, mode="VARIABLE", **options):
    given = {"bitrate_mode": mode, "compression_level": 0.5} | options
    return encoded("MP3", "MPEG_LAYER_III", voice(seed), **given)


def without_header(data):
    """Cut off the first frame, which holds the number of frames and no sound."""
    assert data[:2] == b"\xff\xf3" and (b"Xing" in data[:40] or b"Info" in data[:40])
    start = data.index(data[:2], 4)
    return data[start:]


def with_total(flac, samples):
    """Write a number of samples into the header of a FLAC file."""
    bits = int.from_bytes(flac[18:26], "big")
    return flac[:18] + (bits >> 36 << 36 | samples).to_bytes(8, "big") + flac[26:]


def read(folder, name, data):
    (folder / name).write_bytes(data)
    return audio.read_sound(folder / name)


ID3 = b"ID3\x04\0\0\0\0\x02\0" + bytes(256)
ALONE = {
    "mp3": ("a.mp3", lambda seed: mp3(seed)),
    "constant-mp3": ("a.mp3", lambda seed: mp3(seed, "CONSTANT")),
    "tagged-mp3": ("a.mp3", lambda seed: ID3 + mp3(seed) + b"TAG" + bytes(125)),
    "flac": ("a.flac", lambda seed: encoded("FLAC", "PCM_16", voice(seed))),
    "vorbis": ("a.ogg", lambda seed: encoded("OGG", "VORBIS", voice(seed))),
    "opus": ("a.opus", lambda seed: encoded("OGG", "OPUS", voice(seed))),
}


@pytest.mark.parametrize("kind", ALONE)
def test_files_joined_end_to_end_are_the_sounds_one_after_another(tmp_path, kind):
    name, made = ALONE[kind]
    parts = [made(seed) for seed in range(3)]
    alone = [read(tmp_path, name, part).waveform for part in parts]
    joined = read(tmp_path, name, b"".join(parts))
    assert joined.notes() == [] and joined.has_own_length is False
    if kind == "flac":
        np.testing.assert_array_equal(joined.waveform, np.concatenate(alone))
    for number, part in enumerate(alone):  # encoders add some samples before and after
        begun = number * len(part)
        assert holds(joined.waveform[begun : begun + len(part) + MOST_PADDING * number], part)


MOST_PADDING = 4000


def holds(sound, part):
    """Return whether a sound holds the loud second half of another but for its end."""
    part = part[len(part) // 2 : -MOST_PADDING]
    size = 1 << (len(sound) + len(part)).bit_length()
    products = np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(part, size).conj(), size)
    place = int(np.argmax(products[: len(sound) - len(part)]))
    return np.abs(sound[place : place + len(part)] - part).max() < 0.05 * np.abs(part).max()


@pytest.mark.parametrize("kind", [*ALONE, "short mp3"])
def test_without_ffmpeg_what_is_behind_the_counted_sound_is_named(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(decoding, "is_installed", lambda package: False)
    name, made = ALONE[kind if kind in ALONE else "mp3"]
    alone = read(tmp_path, name, made(0))
    assert len(alone.waveform) == len(voice()) and alone.notes() == []
    rest = b"".join(made(seed) for seed in (1, 2))
    joined = read(tmp_path, name, made(0) + rest)
    assert len(joined.waveform) in (len(voice()), 3 * len(voice()))
    if len(joined.waveform) == len(voice()):
        assert "bytes before the end of the file" in joined.notes()[0]


@pytest.mark.parametrize("mode", ["VARIABLE", "CONSTANT"])
def test_an_mp3_without_a_count_of_its_frames_is_read_to_its_end(tmp_path, mode):
    whole = read(tmp_path, "a.mp3", mp3(mode=mode))
    bare = read(tmp_path, "a.mp3", without_header(mp3(mode=mode)))
    assert len(bare.waveform) >= len(whole.waveform) == len(voice())
    assert holds(bare.waveform, whole.waveform)
    assert read(tmp_path, "a.mp3", ID3 + without_header(mp3(mode=mode))).notes() == []


def test_an_mp3_whose_header_counts_too_few_frames_is_read_to_its_end(tmp_path):
    data = mp3()
    place = data.index(b"Xing") + 8
    frames = int.from_bytes(data[place : place + 4], "big")
    short = data[:place] + (frames // 2).to_bytes(4, "big") + data[place + 4 :]
    assert holds(read(tmp_path, "a.mp3", short).waveform, read(tmp_path, "b.mp3", data).waveform)


def test_an_mp3_with_other_bytes_between_its_frames_is_read_behind_them(tmp_path):
    rest = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
    broken = read(tmp_path, "a.mp3", mp3(0) + rest + mp3(1))
    for seed in (0, 1):
        assert holds(broken.waveform, read(tmp_path, "b.mp3", mp3(seed)).waveform)


def test_a_cut_mp3_says_so(tmp_path):
    data = mp3()
    assert "is cut off" in read(tmp_path, "a.mp3", data[: len(data) // 2]).notes()[0]


@pytest.mark.parametrize("total", [0, 10_000])
def test_flac_without_its_length_or_with_less_is_read_to_its_end(tmp_path, total):
    data = encoded("FLAC", "PCM_16", voice())
    whole = read(tmp_path, "a.flac", data).waveform
    np.testing.assert_array_equal(read(tmp_path, "a.flac", with_total(data, total)).waveform, whole)
    twice = read(tmp_path, "a.flac", 2 * with_total(data, total)).waveform
    np.testing.assert_array_equal(twice, np.tile(whole, 2))


def test_flac_that_promises_more_says_that_it_is_cut_off(tmp_path):
    data = encoded("FLAC", "PCM_16", voice())
    notes = read(tmp_path, "a.flac", with_total(data, 80_000)).notes()
    assert notes == ["is cut off: its header promises 5.00 s, it has 4.00 s"]
    sound = read(tmp_path, "a.flac", with_total(data, len(voice()) + 1))
    assert (sound.missing_samples, sound.samples) == (1, len(voice()))


def test_flac_with_a_tag_behind_it_is_read(tmp_path):
    data = encoded("FLAC", "PCM_16", voice())
    sound = read(tmp_path, "a.flac", data + b"TAG" + bytes(125))
    assert len(sound.waveform) == len(voice()) and sound.notes() == []


def with_length(wav, length):
    place = wav.index(b"data") + 4
    return wav[:place] + struct.pack("<I", length) + wav[place + 4 :]


def test_a_wav_that_is_longer_than_its_header_says_is_noted_here_and_in_a_folder(tmp_path):
    data = with_length(encoded("WAV", "PCM_16", voice()), 100_000)
    sound = read(tmp_path, "short.wav", data)
    assert len(sound.waveform) == 50_000 and sound.unread_bytes == len(data) - 100_044
    assert "28,000 bytes before the end of the file" in sound.notes()[0]
    read(tmp_path, "other.wav", encoded("WAV", "PCM_16", voice(1)))
    said = "\n".join(scan(tmp_path, RATE_HZ).lines())
    assert "read up to the end given in the header, not the end of the file: 1: short.wav" in said


@pytest.mark.parametrize("kind", ["WAV", "RF64", "AIFF", "WAVEX"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_a_cut_file_lacks_is_counted_to_the_sample(tmp_path, kind, channels):
    data = encoded(kind, "PCM_16", np.repeat(voice()[:8000, None], channels, 1))
    for lost, samples in (
        (1, 1),
        (2 * channels, 1),
        (2 * channels + 1, 2),
        (6000, 3000 // channels),
    ):
        sound = read(tmp_path, "a.wav", data[: len(data) - lost])
        assert (sound.missing_samples, sound.samples) == (samples, 8000 - samples)
        assert sound.notes()[0].startswith("is cut off: its header promises 0.50 s")
    whole = read(tmp_path, "a.wav", data)
    assert (whole.missing_samples, whole.has_own_length, whole.endless) == (0, True, False)


def test_a_header_without_a_length_is_said_here_and_in_a_folder(tmp_path):
    wav = encoded("WAV", "PCM_16", voice())
    files = {"a.wav": with_length(wav, 0xFFFFFFFF), "b.wav": with_length(wav, 0x7FFFF000)}
    files["e.wav"] = with_length(wav, 0x7FFFFFFF)
    files["c.flac"] = with_total(encoded("FLAC", "PCM_16", voice(1)), 0)
    for name, data in files.items():
        sound = read(tmp_path, name, data)
        assert (sound.endless, sound.has_own_length, sound.samples) == (True, False, len(voice()))
        assert "has no length in its header" in sound.notes()[0]
    read(tmp_path, "d.wav", encoded("WAV", "PCM_16", voice(2)))
    said = "\n".join(scan(tmp_path, RATE_HZ).lines())
    words = "without a length in the header, read up to the end of the file: 2: "
    assert words in said  # b.wav and e.wav are copies of a.wav


CHANGES = {
    "grown": lambda path, data: path.write_bytes(data + bytes(10)),
    "cut": lambda path, data: path.write_bytes(data[:-1000]),
    "emptied": lambda path, data: path.write_bytes(b""),
    "written again": lambda path, data: os.utime(path, ns=(1, 1)),
    "exchanged": lambda path, data: (
        path.with_suffix(".x").write_bytes(data),
        os.replace(path.with_suffix(".x"), path),
    ),
}


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, kind, change):
    path, data = tmp_path / "a.wav", encoded(kind, "PCM_16", np.tile(voice(), 5))
    path.write_bytes(data)
    found = properties(path)
    blocks = SoundFile(path).blocks()
    next(blocks)
    CHANGES[change](path, data)
    with pytest.raises(audio.AudioError, match=r"a\.wav: (has changed|holds zero bytes)"):
        list(blocks)
    with pytest.raises(audio.AudioError, match=r"a\.wav: (has changed|holds zero bytes)"):
        next(mono_blocks(path, found))


@pytest.mark.parametrize("kind", ["WAV", "RF64", "AIFF", "WAVEX"])
@pytest.mark.parametrize("samples", [8000, 8001])
def test_chunks_and_padding_behind_the_sound_are_no_sound(tmp_path, kind, samples):
    data = encoded(kind, "PCM_16", voice()[:samples])
    order = "big" if kind == "AIFF" else "little"
    chunk = b"id3 " + (5000).to_bytes(4, order) + bytes(5000)
    for rest in (b"", chunk, chunk + chunk, bytes(512)):
        assert read(tmp_path, "a.wav", data + rest).notes() == []


def test_joined_sounds_of_two_rates_are_refused_in_one_line(tmp_path):
    other = encoded("FLAC", "PCM_16", voice(), rate_hz=8000)
    with pytest.raises(audio.AudioError, match=r"changes from 16,000 Hz .* to 8,000 Hz"):
        read(tmp_path, "a.flac", encoded("FLAC", "PCM_16", voice()) + other)


@pytest.mark.parametrize("kind", ALONE)
def test_damage_is_read_or_refused_and_never_another_error(tmp_path, kind):
    name, made = ALONE[kind]
    data, rng = bytearray(made(0) + made(1)), np.random.default_rng(0)
    for _ in range(20):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 20):
            damaged[place] = rng.integers(256)
        del damaged[rng.integers(len(data) // 2, len(data)) :]
        try:
            read(tmp_path, name, bytes(damaged))
        except audio.AudioError as error:
            assert "\n" not in str(error)
