"""Prepared recordings, their cache, and clips."""

import errno
import json
import os

import numpy as np
import pytest
import soundfile
import tensorflow as tf

from onepass.foundation.rules import UserError
from wavenet.config import MelConvention, PitchConvention
from wavenet.data import audio, batch_sampling, clips, corpus
from wavenet.data.batch_sampling import Augmentation, ClipSource, batch
from wavenet.data.recordings import scan
from wavenet.features.frames import above_silence, fundamental_frequency, mel_spectrogram

RATE_HZ = 16000
HOP = 100
MEL = MelConvention(RATE_HZ, HOP, window_samples=400, fft_size=512, bands=8, low_hz=60.0)
PITCH = PitchConvention(RATE_HZ, HOP)


def recording(seed, samples):
    """A tone in noise."""
    noise = np.random.default_rng(seed).normal(0, 0.01, samples)
    return noise + 0.1 * np.sin(2 * np.pi * (100 + 20 * seed) * np.arange(samples) / RATE_HZ)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lengths = {"train/a.wav": 9000, "train/b.wav": 5050, "train/c.wav": 5500, "dev/d.wav": 6000}
    for seed, (name, samples) in enumerate(lengths.items()):
        (folder / name).parent.mkdir(exist_ok=True)
        soundfile.write(folder / name, recording(seed, samples), RATE_HZ, subtype="PCM_16")
    (folder / "train.tsv").write_text("file\tspeaker\na.wav\tbob\nb.wav\tann\nc.wav\tbob\n")
    (folder / "dev.tsv").write_text("file\tspeaker\ttext\nd.wav\taaron\tWords.\n")
    return folder


@pytest.fixture(scope="module")
def report(folder):
    return scan(folder, RATE_HZ)


@pytest.fixture(scope="module")
def prepared(report):
    return corpus.prepare(report, mel=MEL, pitch=PITCH)


def batches(dataset, count):
    return [{k: v.numpy() for k, v in batch.items()} for batch in dataset.take(count)]


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def assert_same_arrays(first, second):
    for split in ("train", "dev"):
        for a, b in zip(first.splits[split], second.splits[split], strict=True):
            for name in ("waveform", "mel", "f0_hz"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_prepared_arrays_are_the_file_and_its_features(prepared, folder):
    for member in corpus.recordings_of(prepared, "train"):
        stored, _ = soundfile.read(folder / member.name, dtype="int16")
        np.testing.assert_array_equal(member.waveform, stored)
        waveform = audio.from_int16(stored)
        np.testing.assert_array_equal(member.mel, mel_spectrogram(waveform, MEL))
        f0_hz, _ = fundamental_frequency(waveform, PITCH)
        np.testing.assert_array_equal(member.f0_hz, f0_hz)


def test_speakers_of_train_come_first(prepared):
    assert prepared.speakers == ("ann", "bob", "aaron")
    assert prepared.num_train_speakers == 2
    train = {p.name: p.speaker for p in corpus.recordings_of(prepared, "train")}
    assert train == {"train/a.wav": 1, "train/b.wav": 0, "train/c.wav": 1}


def test_one_gain_brings_the_median_of_train_to_the_level(report):
    made = corpus.prepare(report, level_db=-12.0)
    train = [audio.rms_db(audio.from_int16(p.waveform)) for p in made.splits["train"]]
    assert np.median(train) == pytest.approx(-12.0, abs=0.02)
    assert f"a gain of {made.gain_db:+.2f} dB brings it to -12 dB" in made.notes[0]
    assert corpus.prepare(report, gain_db=-6.0, level_db=-1.0).gain_db == -6.0  # a stated one
    plain = corpus.prepare(report)
    assert plain.gain_db == 0.0
    for a, b in zip(made.splits["dev"], plain.splits["dev"], strict=True):
        gained = audio.amplify(audio.from_int16(b.waveform), made.gain_db)
        np.testing.assert_allclose(audio.from_int16(a.waveform), gained, atol=1.01 / 65535)


def test_no_gain_brings_a_peak_above_full_scale(report):
    made = corpus.prepare(report, level_db=0.0)
    for member in [p for split in made.splits.values() for p in split]:
        assert audio.peak_db(audio.from_int16(member.waveform)) == pytest.approx(-0.3, abs=0.02)
    assert made.notes[1].startswith("level: amplified by less, so that their peaks stay below")


@pytest.mark.parametrize("given", [{"level_db": -20.0}, {"gain_db": 3.0}])
def test_one_loud_recording_does_not_decide_the_level_of_the_others(tmp_path, given):
    for seed, name in enumerate(("a.wav", "b.wav", "c.wav", "loud.wav")):
        soundfile.write(tmp_path / name, recording(seed, 6000), RATE_HZ)
    plain = corpus.prepare(scan(tmp_path, RATE_HZ), **given)
    sound = recording(3, 6000)
    soundfile.write(tmp_path / "loud.wav", 0.99 * sound / np.abs(sound).max(), RATE_HZ)
    made = corpus.prepare(scan(tmp_path, RATE_HZ), **given)
    assert abs(made.gain_db - plain.gain_db) < 0.5  # the median of few is one of them
    every = {p.name: audio.from_int16(p.waveform) for s in made.splits.values() for p in s}
    assert audio.peak_db(every.pop("loud.wav")) == pytest.approx(audio.decibel(0.99), abs=0.01)
    for name, wave in every.items():
        stored = audio.read(tmp_path / name)
        gain_db = audio.rms_db(wave) - audio.rms_db(stored)
        assert gain_db == pytest.approx(made.gain_db, abs=0.01)
    assert made.notes[-1].endswith("below full scale: 1: loud.wav")


def test_a_cache_hit_equals_computing_and_reads_no_sound(report, prepared, tmp_path, monkeypatch):
    first = corpus.prepare(report, mel=MEL, pitch=PITCH, cache_folder=tmp_path)

    def refuse(*_):
        raise AssertionError("read a sound although it was cached")

    monkeypatch.setattr(audio, "read", refuse)
    second = corpus.prepare(report, mel=MEL, pitch=PITCH, cache_folder=tmp_path)
    assert_same_arrays(first, prepared)
    assert_same_arrays(second, prepared)


def test_another_convention_or_gain_is_another_entry(report, tmp_path):
    for settings in ({"mel": MEL}, {"mel": MEL, "gain_db": 1.0}, {"pitch": PITCH}, {}):
        corpus.prepare(report, cache_folder=tmp_path, **settings)
    assert len(list(tmp_path.iterdir())) == 16


def test_speeds_add_recordings_of_train_at_another_pace_and_pitch(report, prepared, tmp_path):
    more = corpus.prepare(report, mel=MEL, pitch=PITCH, speeds=(0.8, 1.25), cache_folder=tmp_path)
    count = len(prepared.splits["train"])
    assert len(more.splits["train"]) == 3 * count
    assert len(more.splits["dev"]) == len(prepared.splits["dev"])
    first, slow, fast = (more.splits["train"][n * count] for n in range(3))
    np.testing.assert_array_equal(first.waveform, prepared.splits["train"][0].waveform)
    assert slow.name == fast.name == first.name
    for other, speed in ((slow, 0.8), (fast, 1.25)):
        samples = len(first.waveform) / speed
        assert abs(len(other.waveform) - samples) < 2
        assert len(other.mel) == -(-len(other.waveform) // HOP)
        peaks = [np.argmax(np.abs(np.fft.rfft(x.waveform, 16_000))) for x in (first, other)]
        assert abs(peaks[1] - speed * peaks[0]) < 3  # of the tone, in Hz
    again = corpus.prepare(report, mel=MEL, pitch=PITCH, speeds=(0.8, 1.25), cache_folder=tmp_path)
    assert_same_arrays(again, more)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "other"])
def test_a_damaged_cache_is_built_anew(report, prepared, tmp_path, damage):
    corpus.prepare(report, mel=MEL, pitch=PITCH, cache_folder=tmp_path)
    for path in tmp_path.iterdir():
        whole = path.read_bytes()
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
        contents = {"cut": whole[:middle], "flipped": flipped, "empty": b"", "text": b"no" * 99}
        if damage == "other":
            np.savez(path, waveform=np.zeros(3, np.int16))
        else:
            path.write_bytes(contents[damage])
    assert_same_arrays(
        corpus.prepare(report, mel=MEL, pitch=PITCH, cache_folder=tmp_path), prepared
    )
    assert_same_arrays(
        corpus.prepare(report, mel=MEL, pitch=PITCH, cache_folder=tmp_path), prepared
    )


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(report, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"^Cannot write .*: No space left on device\. Earlier"):
        corpus.prepare(report, cache_folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_conventions_that_do_not_fit_are_refused(report):
    with pytest.raises(ValueError, match=r"`mel.sample_rate_hz` must be the corpus's 16000"):
        corpus.prepare(report, mel=MelConvention())
    with pytest.raises(ValueError, match=r"`pitch.hop_samples` must be that of mel, 100, got 80"):
        corpus.prepare(report, mel=MEL, pitch=PitchConvention(RATE_HZ, 80))


def settings(**changes):
    return {"clip_samples": 600, "batch_size": 4, "seed": 3, "features": ("mel", "f0"), **changes}


def clips_of(prepared, split, start_step=0, num_shards=1, **settings):
    drawn = clips.ClipBatches(prepared, split=split, **settings)
    return drawn(start_step, num_shards=num_shards)


def test_a_restarted_pipeline_equals_the_uninterrupted_one(prepared):
    uninterrupted = batches(clips_of(prepared, "train", **settings()), 9)
    for start in (1, 5):
        resumed = batches(clips_of(prepared, "train", **settings(start_step=start)), 9 - start)
        for one, other in zip(uninterrupted[start:], resumed, strict=True):
            assert_same(one, other)
    far = clips_of(prepared, "train", **settings(start_step=10**12))
    assert far.element_spec["frames"].shape == [4, 6, 10]
    assert_same(batches(far, 1)[0], batches(far, 1)[0])
    other = batches(clips_of(prepared, "train", **settings(seed=-4)), 1)[0]["waveform"]
    for waveform in (uninterrupted[1]["waveform"], other):
        assert not np.array_equal(uninterrupted[0]["waveform"], waveform)


@pytest.mark.parametrize(("left", "side"), [(0, 0), (300, 3)])
def test_a_clip_is_a_stretch_of_its_recording_with_its_past_and_frames(prepared, left, side):
    members = corpus.recordings_of(prepared, "train")
    source = clips.source_of(prepared, "train", 600, ("mel",), clips.ClipContext(left, side))
    batch, starts = batch_sampling.batch(source, 3, 0, 200), []
    around = [corpus.silent_frame(prepared, ("mel",))] * (left // HOP + side)
    for row, (which, start) in enumerate(batch_sampling.clip_places(source, 3, 0, 200)):
        member = members[which]
        assert start % HOP == 0 and start + 600 <= len(member.waveform)
        whole = np.concatenate([np.zeros(left, np.float32), audio.from_int16(member.waveform)])
        np.testing.assert_array_equal(batch["waveform"][row], whole[start : start + left + 600])
        np.testing.assert_array_equal(batch["mask"][row], [0.0] * left + [1.0] * 600)
        frames = [*around, *above_silence(member.mel, MEL), *around][start // HOP :]
        np.testing.assert_array_equal(
            batch["frames"][row], frames[: (left + 600) // HOP + 2 * side]
        )
        assert batch["speaker"][row] == member.speaker
        starts.append(start)
    assert min(starts) == 0 and max(starts) > left


def test_every_start_is_equally_likely():
    waveforms = [np.zeros(n, np.int16) for n in (1500, 700, 200, 1049)]
    source = batch_sampling.ClipSource(waveforms, [0, 0, 0, 0], 500, hop_samples=100)
    drawn = [
        place for step in range(40) for place in batch_sampling.clip_places(source, 1, step, 100)
    ]
    places, counts = np.unique(drawn, axis=0, return_counts=True)
    wanted = [(0, 100 * k) for k in range(11)] + [(1, 100 * k) for k in range(3)]
    wanted += [(2, 0)] + [(3, 100 * k) for k in range(6)]
    assert [tuple(place) for place in places.tolist()] == wanted
    expected = len(drawn) / len(wanted)
    chi_squared = np.sum((counts - expected) ** 2 / expected)
    assert chi_squared < 45.3  # 99.9% of chi-squared with 20 degrees of freedom


def test_a_recording_shorter_than_a_clip_is_padded_and_masked(prepared):
    batch = batches(clips_of(prepared, "dev", **settings(clip_samples=7000)), 1)[0]
    member = corpus.recordings_of(prepared, "dev")[0]
    for row in range(4):
        np.testing.assert_array_equal(
            batch["waveform"][row, :6000], audio.from_int16(member.waveform)
        )
    assert batch["mask"][:, :6000].all() and not batch["mask"][:, 6000:].any()
    assert not batch["waveform"][:, 6000:].any()
    np.testing.assert_allclose(batch["frames"][:, 60:], 0.0, atol=1e-6)
    assert np.abs(batch["frames"][:, :60]).mean() > 0.1


def test_without_features_clips_start_anywhere(prepared):
    source = clips.source_of(prepared, "train", 777, ())
    starts = [start for _, start in batch_sampling.clip_places(source, 0, 0, 64)]
    assert len({start % HOP for start in starts}) > 20
    batch = batches(clips_of(prepared, "train", **settings(features=(), clip_samples=777)), 1)
    assert batch[0].keys() == {"waveform", "mask", "speaker"}


def test_levels_are_what_the_encoder_says(prepared):
    def encode(waveform):
        return tf.cast(tf.round((waveform + 1.0) / 2.0 * 65535.0), tf.int32)

    batch = batches(clips_of(prepared, "dev", **settings(encode=encode, clip_samples=6100)), 1)[0]
    samples = corpus.recordings_of(prepared, "dev")[0].waveform.astype(np.int32)
    np.testing.assert_array_equal(batch["levels"][0, :6000], samples + 32768)
    np.testing.assert_array_equal(batch["levels"][0, 6000:], 32768)


@pytest.mark.parametrize(
    ("split", "changes", "why"),
    [
        ("train", {"clip_samples": 650}, "multiple of `hop_samples` 100, got 650"),
        ("train", {"batch_size": 3, "num_shards": 2}, "multiple of `num_shards` 2"),
        ("train", {"features": ("words",)}, "`features` must be among the prepared"),
        ("train", {"start_step": -1}, "`start_step` must be at least 0, got -1"),
        ("test", {}, '`split` must be one of .*, got "test"'),
    ],
)
def test_clips_that_cannot_be_are_refused(prepared, split, changes, why):
    with pytest.raises(ValueError, match=why):
        clips_of(prepared, split, **settings(**changes))


def test_whole_recordings_come_once_with_their_words(prepared):
    (item,) = corpus.full_recordings(prepared, "dev", ("mel",))
    assert (item["name"], item["text"], item["speaker"]) == ("dev/d.wav", "Words.", 2)
    np.testing.assert_array_equal(audio.to_int16(item["waveform"]), item["samples"])
    assert item["frames"].shape == (60, 8)
    assert len(list(corpus.full_recordings(prepared, "train"))) == 3


def test_an_exported_corpus_gives_the_same_batches(prepared, tmp_path):
    around = clips.ClipContext(300, 3, gain_db=6.0, polarity=True)
    drawn = clips.ClipBatches(prepared, around=around, **settings())
    portable = drawn.portable()
    portable.write(tmp_path / clips.CLIPS)
    opened = portable.module.open_batches(tmp_path, json.loads(json.dumps(portable.settings)))
    assert_same(opened(2), batches(drawn(2), 1)[0])
    with np.load(tmp_path / clips.CLIPS, allow_pickle=False) as stored:
        arrays = dict(stored)
    assert json.loads(str(arrays["description"]))["mel"] == MEL.to_dict()
    assert arrays["dev_names"].tolist() == ["dev/d.wav"]


# Clips that are amplified and inverted


CLIP, LEFT, SIDE = 400, 300, 3


def white(seed, samples):
    generator = np.random.default_rng(seed)
    return audio.to_int16((0.05 * generator.standard_normal(samples)).astype(np.float32))


TWO = [white(0, 2300), white(1, 900)]
OF_TWO = [above_silence(mel_spectrogram(audio.from_int16(r), MEL), MEL) for r in TWO]
PADDING = np.full(8, -1.0, np.float32)


def source_with(**changes):
    around = dict(left_samples=LEFT, side_frames=SIDE) | changes
    return ClipSource(TWO, [0, 1], CLIP, frames=OF_TWO, padding=PADDING, hop_samples=HOP, **around)


def test_an_amplified_clip_has_the_mel_of_an_amplified_recording():
    loud = Augmentation(6.0, False, 8, MEL.silence)
    plain, changed = source_with(), source_with(augmentation=loud)
    gains = []
    for step in range(20):
        before, after = batch(plain, 5, step, 2), batch(changed, 5, step, 2)
        for row in range(2):
            power = [np.sqrt(np.mean(b["waveform"][row] ** 2)) for b in (before, after)]
            gain = power[1] / power[0]
            gains.append(20 * np.log10(gain))
            np.testing.assert_allclose(
                after["waveform"][row], gain * before["waveform"][row], atol=1e-6
            )
            inside = before["frames"][row] > 0.0
            expected = before["frames"][row] - np.log(gain) / MEL.silence
            np.testing.assert_allclose(after["frames"][row][inside], expected[inside], atol=1e-5)
            outside = after["frames"][row][~inside]
            assert np.all(outside == 0.0)
    assert -6.0 <= min(gains) < -3.0 and 3.0 < max(gains) <= 6.0


def test_polarity_inverts_about_half_of_the_clips():
    plain = source_with()
    turned = source_with(augmentation=Augmentation(0.0, True, 8, MEL.silence))
    signs = []
    for step in range(60):
        before, after = batch(plain, 5, step, 2), batch(turned, 5, step, 2)
        np.testing.assert_array_equal(np.maximum(before["frames"], 0.0), after["frames"])
        for row in range(2):
            same = np.array_equal(after["waveform"][row], before["waveform"][row])
            opposite = np.array_equal(after["waveform"][row], -before["waveform"][row])
            assert same != opposite
            signs.append(same)
    assert 35 < sum(signs) < 85


def test_no_gain_leaves_full_scale():
    loud = (TWO[0].astype(np.float64) / np.abs(TWO[0]).max() * 32000).astype(np.int16)
    source = ClipSource(
        [loud], [0], CLIP, hop_samples=1, augmentation=Augmentation(12.0, False, 0, -1.0)
    )
    assert max(np.abs(batch(source, 5, n, 2)["waveform"]).max() for n in range(20)) <= 0.991


def test_shards_of_augmented_batches_are_the_rows_of_the_whole():
    source = source_with(augmentation=Augmentation(6.0, True, 8, MEL.silence))
    whole = batch(source, 5, 3, 4)
    parts = [batch(source, 5, 3, 4, shard_index=n, num_shards=2) for n in range(2)]
    for name, value in whole.items():
        np.testing.assert_array_equal(value, np.concatenate([part[name] for part in parts]))


def test_a_past_of_half_a_frame_is_refused():
    with pytest.raises(ValueError, match="`left_samples` must be a multiple of `hop_samples` 100"):
        source_with(left_samples=150)
