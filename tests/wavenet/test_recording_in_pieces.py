"""A recording in pieces is the whole one to the bit, in a memory that does not grow with it."""

import tracemalloc

import numpy as np
import pytest
import sound_bundles
import soundfile

from serving.engine.speech import decode_recording
from wavenet.config import MelConvention
from wavenet.data import audio
from wavenet.data.audio import RecordingInPieces
from wavenet.features.frames import (
    FRAMES_AT_ONCE,
    KEPT_FRAMES,
    FramesInPieces,
    mel_pieces,
    mel_spectrogram,
)

STUDENT = "plain"
RATE_HZ = sound_bundles.RATE_HZ


def noise(samples, seed=0):
    loudness = 0.1 * np.sin(np.arange(samples) / 3000)
    return (np.random.default_rng(seed).normal(size=samples) * loudness).astype(np.float32)


def written(folder, waveform, rate_hz=RATE_HZ, name="a.flac"):
    soundfile.write(folder / name, waveform, rate_hz, subtype="PCM_16")
    return folder / name


@pytest.mark.parametrize("stored_hz", [RATE_HZ, 44_100, 8_000, 22_050])
@pytest.mark.parametrize("samples", [40, 5_000, 600_001])
def test_blocks_and_levels_are_those_of_the_whole(tmp_path, stored_hz, samples):
    path = written(tmp_path, noise(samples), stored_hz)
    whole = audio.read(path, RATE_HZ)
    pieces = RecordingInPieces(path, RATE_HZ)
    np.testing.assert_array_equal(np.concatenate(list(pieces.blocks())), whole)
    assert pieces.samples == len(whole)
    assert (pieces.rms_db, pieces.peak_db) == (audio.rms_db(whole), audio.peak_db(whole))
    np.testing.assert_array_equal(pieces.beginning(1000), whole[:1000])


@pytest.mark.parametrize("sign", [1, -1], ids=["averaged", "cancelled"])
def test_channels_are_mixed_as_in_the_whole(tmp_path, sign):
    sound = noise(300_000)
    path = written(tmp_path, np.stack([sound, sign * 0.9 * sound], 1), 44_100)
    pieces = RecordingInPieces(path, RATE_HZ)
    assert pieces.file.cancelled == (sign < 0)
    np.testing.assert_array_equal(np.concatenate(list(pieces.blocks())), audio.read(path, RATE_HZ))


def test_a_file_that_changes_meanwhile_is_refused(tmp_path):
    pieces = RecordingInPieces(written(tmp_path, noise(5000)), RATE_HZ)
    written(tmp_path, noise(4000))
    with pytest.raises(audio.AudioError, match="has changed"):
        list(pieces.blocks())


PIECE = 256 * FRAMES_AT_ONCE


@pytest.mark.parametrize("padding", ["zeros", "reflect"])
@pytest.mark.parametrize("samples", [2, 300, 1023, 1500, 5000, PIECE - 1, PIECE + 1, 2 * PIECE + 9])
def test_mel_frames_do_not_depend_on_the_blocks(padding, samples):
    convention, sound = MelConvention(22_050, 256, padding=padding), noise(samples)
    whole = mel_spectrogram(sound, convention)
    for size in (1 if samples <= 5000 else 9_999, 100_003):
        blocks = (sound[first : first + size] for first in range(0, samples, size))
        pieces = list(mel_pieces(blocks, samples, convention))
        np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_slices_are_those_of_all_frames_in_any_order():
    frames = np.random.default_rng(0).normal(size=(3 * KEPT_FRAMES, 2)).astype(np.float32)
    begun = []

    def pieces():
        begun.append(True)
        return (frames[first : first + 500] for first in range(0, len(frames), 500))

    made = FramesInPieces(frames.shape, pieces, 0.0)
    for start in range(0, len(frames), 700):
        for part in (slice(start, start + 900), slice(max(0, start - 2000), start), slice(9, 9)):
            if part.start >= start - 2000:
                np.testing.assert_array_equal(made[part], frames[part])
    assert len(begun) == 1  # in the order of time nothing is computed twice
    np.testing.assert_array_equal(made[:10], frames[:10])
    np.testing.assert_array_equal(np.asarray(made), frames)


@pytest.mark.parametrize("refine", [0, 2])
def test_a_student_makes_the_same_sound_of_pieces(tmp_path, refine):
    model = sound_bundles.model(STUDENT)
    path = written(tmp_path, noise(30_000), 22_050)
    waveform, pieces = audio.read(path, RATE_HZ), RecordingInPieces(path, RATE_HZ)
    assert model.front.level_gain_of(pieces) == model.front.level_gain_db(waveform)
    whole, lazy = np.asarray(model.front.frames(waveform)), model.front.frames_in_pieces(pieces)
    np.testing.assert_array_equal(np.asarray(lazy), whole)
    assert lazy.shape == whole.shape and len(lazy) == len(whole)
    given = {"seed": 3, "num": 2, "refine": refine, "chunk": 1000}
    sounds = [
        np.concatenate(list(model.stream(condition=frames, **given)), 1) for frames in (whole, lazy)
    ]
    np.testing.assert_array_equal(*sounds)


@pytest.mark.parametrize("offset", [0.05, -0.2, 0.5])
@pytest.mark.parametrize("stored_hz", [RATE_HZ, 22_050])
def test_a_constant_offset_changes_no_frame_and_no_level(tmp_path, offset, stored_hz):
    model, clean = sound_bundles.model(STUDENT), noise(30_000)
    clean -= clean.mean()
    paths = [written(tmp_path, clean + d, stored_hz, f"{d}.wav") for d in (0.0, offset)]
    wanted = model.front.frames(audio.read(paths[0], RATE_HZ))
    pieces = RecordingInPieces(paths[1], RATE_HZ)
    lazy = np.asarray(model.front.frames_in_pieces(pieces))
    raw = soundfile.read(paths[1], dtype="float32")[0]
    of_array = model.front.frames(audio.resample(raw, stored_hz, RATE_HZ))
    sent = decode_recording(paths[1].read_bytes(), RATE_HZ, 10)
    for frames in (
        model.front.frames(audio.read(paths[1], RATE_HZ)),
        of_array,
        model.front.frames(sent),
    ):
        np.testing.assert_allclose(frames[2:-2], wanted[2:-2], atol=0.02)
        assert frames.gain_db == pytest.approx(wanted.gain_db, abs=0.1)
    np.testing.assert_allclose(lazy[2:-2], np.asarray(wanted)[2:-2], atol=0.02)
    assert model.front.level_gain_of(pieces) == pytest.approx(wanted.gain_db, abs=0.01)
    level = f"{20 * np.log10(abs(offset)):.1f}"
    assert pieces.file.notes() == [f"has a constant offset of {level} dB, which is taken out"]


def peak_bytes(path):
    """The most memory that the analysis of a file holds at once."""
    tracemalloc.start()
    model, recording = sound_bundles.model(STUDENT), RecordingInPieces(path, RATE_HZ)
    frames = model.front.frames_in_pieces(recording)
    for start in range(0, len(frames), 100):
        assert np.isfinite(frames[start : start + 100]).all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_the_memory_does_not_grow_with_the_recording(tmp_path):
    model = sound_bundles.model(STUDENT)
    piece = FRAMES_AT_ONCE * model.front.hop_samples
    lengths = [max(8 * piece, 1 << 20), 4 * max(8 * piece, 1 << 20)]
    paths = [written(tmp_path, noise(n), name=f"{n}.flac") for n in lengths]
    peak_bytes(paths[0])  # what is made once
    short, long = map(peak_bytes, paths)
    assert long < 1.2 * short
    assert long < 4 * lengths[1]  # less than the waveform alone


WAVE = np.sin(np.arange(3000) / 20).astype(np.float32)
WRONG = {
    "empty": (np.zeros(0, np.float32), "got float32 [0]."),
    "nan": (np.where(np.arange(3000) == 70, np.nan, WAVE), "got nan at sample 70."),
    "infinite": (np.where(np.arange(3000) == 70, -np.inf, WAVE), "got -inf at sample 70."),
    "integers": (np.zeros(3000, np.int16), "got int16 [3000]."),
    "stereo": (np.stack([WAVE, WAVE], 1), "got float32 [3000, 2]."),
    "masked": (np.ma.masked_less(WAVE, 0.0), "must have no masked values"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("method", ["frames", "frames_at_level"])
def test_what_is_no_waveform_has_no_frames(kind, method):
    waveform, why = WRONG[kind]
    with pytest.raises(ValueError) as caught:
        getattr(sound_bundles.model("plain").front, method)(waveform)
    line = str(caught.value)
    assert line.startswith("`waveform` must ") and why in line and "\n" not in line
