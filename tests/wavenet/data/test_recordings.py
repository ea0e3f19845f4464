"""Which recordings of a folder are used, and what is said of the others."""

import os
import threading

import numpy as np
import pytest
import soundfile

from onepass.foundation.rules import UserError
from wavenet import shipped
from wavenet.data import audio, corpus, recordings
from wavenet.data.recordings import DataError, ScanRules, scan

RATE_HZ = 16000


def sound(seed, seconds=0.4, peak=0.3):
    waveform = np.random.default_rng(seed).normal(size=round(seconds * RATE_HZ))
    return peak * waveform / np.max(np.abs(waveform))


def put(path, waveform, rate_hz=RATE_HZ, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, waveform, rate_hz, **options)


def fill(folder, names):
    for seed, name in enumerate(names):
        put(folder / name, sound(seed))


def splits(report):
    return {r.name: r.split for r in report.recordings}


def left_out(report):
    return {item.name: item.kind for item in report.left_out}


def add_texts(folder):
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.py"):
        (folder / name).write_text("words")


def add_bad_files(folder):
    put(folder / "silent.wav", np.zeros(RATE_HZ))
    put(folder / "faint.wav", sound(91, peak=0.0005))
    put(folder / "short.wav", sound(92, seconds=0.2))
    put(folder / "clipped.wav", np.clip(sound(93, peak=20.0), -1, 1))
    put(folder / "empty.wav", np.zeros(0))
    put(folder / "cut.flac", sound(94, seconds=2.0))
    data = (folder / "cut.flac").read_bytes()
    (folder / "cut.flac").write_bytes(data[: len(data) // 2])
    (folder / "zero.wav").write_bytes(b"")
    (folder / "letter.wav").write_text("Dear reader, " * 50)
    (folder / "._a.wav").write_text("what some systems leave next to every file")
    wide = np.stack([sound(95, seconds=3.0), sound(96, seconds=3.0)], 1)
    put(folder / "wide.flac", wide, 96000)


def test_every_bad_file_is_named_with_its_reason_and_the_rest_is_kept(tmp_path):
    fill(tmp_path, ["a.wav", "sub/b.flac", "sub/deep/c.ogg"])
    add_bad_files(tmp_path)
    report = scan(tmp_path, RATE_HZ)
    assert left_out(report) == {
        "silent.wav": "silent",
        "faint.wav": "silent",
        "short.wav": "too short",
        "empty.wav": "unreadable",
        "cut.flac": "unreadable",
        "zero.wav": "unreadable",
        "letter.wav": "unreadable",
    }
    kept = {"a.wav", "sub/b.flac", "sub/deep/c.ogg", "clipped.wav", "wide.flac"}
    assert set(splits(report)) == kept
    assert report.clipped == ("clipped.wav",)
    text = "\n".join(report.lines())
    for said in ("zero bytes", "peak -66.0 dB", "0.20 s, wanted 0.3 s", "clipped, but kept: 1"):
        assert said in text
    strict = scan(tmp_path, RATE_HZ, ScanRules(keep_clipped=False))
    assert left_out(strict) == left_out(report) | {"clipped.wav": "clipped"}
    assert strict.clipped == () and set(splits(strict)) == kept - {"clipped.wav"}


@pytest.mark.parametrize("level", [0.5, -0.02, 0.0])
def test_a_recording_that_is_one_constant_is_silent(tmp_path, level):
    fill(tmp_path, ["a.wav", "b.wav"])
    put(tmp_path / "constant.wav", np.full(RATE_HZ, level))
    put(tmp_path / "stereo.wav", np.full([RATE_HZ, 2], level + 0.001))
    report = scan(tmp_path, RATE_HZ)
    assert left_out(report) == {"constant.wav": "silent", "stereo.wav": "silent"}


def test_only_an_offset_that_is_none_of_the_sounds_is_taken_out_and_named(tmp_path):
    plain = sound(1) - sound(1).mean()
    deviation = plain.std()
    for name, share in {"a.wav": 0.0, "b.wav": 0.08, "c.wav": 0.12, "d.wav": -2.0}.items():
        put(tmp_path / name, plain * (1 if share <= 0 else 0.9) + share * deviation)
    put(tmp_path / "faint.wav", plain * 0.01 + 0.0005)
    report = scan(tmp_path, RATE_HZ)
    assert report.notes == ("with a constant offset, which is taken out: 2: c.wav, d.wav",)
    stored = soundfile.read(tmp_path / "b.wav", dtype="int16")[0]
    np.testing.assert_array_equal(audio.to_int16(audio.read(tmp_path / "b.wav")), stored)
    taken = audio.read(tmp_path / "d.wav")
    assert abs(taken.mean()) < 1e-6
    np.testing.assert_allclose(taken, plain, atol=4e-5)


def test_a_recording_that_changes_between_scan_and_preparation_is_refused(tmp_path):
    fill(tmp_path, ["a.wav", "b.wav"])
    report = scan(tmp_path, RATE_HZ)
    put(tmp_path / "a.wav", sound(77))
    with pytest.raises(audio.AudioError, match=r"a\.wav: has changed since it was scanned"):
        corpus.prepare(report)


def test_what_was_measured_before_a_change_is_not_remembered_for_what_follows_it(
    tmp_path, monkeypatch
):
    fill(tmp_path / "data", ["a.wav", "b.wav"])
    measure = recordings.read_info

    def late(path):
        found = measure(path)
        put(path, sound(77 + len(path.name), seconds=0.7))
        return found

    monkeypatch.setattr(recordings, "read_info", late)
    scan(tmp_path / "data", RATE_HZ, cache_folder=tmp_path / "cache")
    monkeypatch.setattr(recordings, "read_info", measure)
    again = scan(
        tmp_path / "data", RATE_HZ, cache_folder=tmp_path / "cache", rules=ScanRules(dev_share=0.0)
    )
    assert {r.measured.seconds for r in again.recordings} == {0.7}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: None, "no such folder"),
        (lambda folder: folder.write_text(""), "is not a folder"),
        (lambda folder: folder.mkdir(), "no sound file .* found no file at all"),
        (lambda folder: add_texts(folder), r"no sound file \(looked for .*; found 2 \.txt, 1 \.py"),
        (lambda folder: put(folder / "a.wav", np.zeros(9000)), "no usable recording .*1 silent"),
        (lambda folder: put(folder / "a.wav", sound(1)), "recording for dev, of 1 in all"),
        (lambda folder: fill(folder, ["train/a.wav", "train/b.wav", "dev/no.txt.wav/c.wav"])
         or put(folder / "dev/no.txt.wav/c.wav", np.zeros(99)), "for dev, of 2 in all .*too short"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_used_is_one_line_that_names_it(tmp_path, make, why):
    folder = tmp_path / "data"
    make(folder)
    with pytest.raises(DataError, match=why) as caught:
        scan(folder, RATE_HZ)
    text = str(caught.value)
    assert text.startswith(f"{folder}: ") and "\n" not in text


def test_sub_folders_are_the_split_and_their_tables_give_the_texts(tmp_path):
    fill(tmp_path, ["train/a.wav", "train/b.wav", "dev/a.wav", "other/x.wav"])
    (tmp_path / "train.tsv").write_text(
        'file\tspeaker\ttext\na.wav\tAnn\tIt "is\nb.wav\tBob\nq.wav\t\t\n'
    )
    (tmp_path / "dev.tsv").write_text("\ufefffile\ttext\na.wav\tHello\n", encoding="utf-8")
    report = scan(tmp_path, RATE_HZ)
    assert splits(report) == {"train/a.wav": "train", "train/b.wav": "train", "dev/a.wav": "dev"}
    said = {r.name: (r.speaker, r.text) for r in report.recordings}
    assert said["train/a.wav"] == ("Ann", 'It "is')
    assert said["train/b.wav"] == ("Bob", "")
    assert said["dev/a.wav"] == ("", "Hello")
    assert left_out(report) == {"q.wav": "not there", "other/x.wav": "in no split"}


def test_tables_alone_are_the_split_and_dev_wins(tmp_path):
    fill(tmp_path, ["wavs/a.wav", "wavs/b.wav", "wavs/c.wav", "wavs/d.wav"])
    (tmp_path / "train.tsv").write_text("file\nwavs/a.wav\nwavs/b.wav\n")
    (tmp_path / "dev.tsv").write_text("file\nwavs/c.wav\nwavs/b.wav\n")
    (tmp_path / "words.tsv").write_text("file\ttext\nwavs/a.wav\tYes.\nwavs/c.wav\tNo.\n")
    report = scan(tmp_path, RATE_HZ)
    assert splits(report) == {"wavs/a.wav": "train", "wavs/b.wav": "dev", "wavs/c.wav": "dev"}
    assert left_out(report) == {"wavs/d.wav": "in no split"}
    assert [r.text for r in report.recordings] == ["", "No.", "Yes."]


def test_a_table_without_names_or_with_broken_text_does_not_stop_the_scan(tmp_path):
    fill(tmp_path, ["a.wav", "b.wav"])
    (tmp_path / "index.tsv").write_text("speaker\tdigit\nAnn\t1\n")
    (tmp_path / "texts.tsv").write_bytes(b"file\ttext\na.wav\t\xff\xfe caf\xe9\n\n\t\nb.wav\n")
    (tmp_path / "metadata.csv").write_text("file_name,text\na.wav,Yes.\n")
    report = scan(tmp_path, RATE_HZ)
    assert len(report.recordings) == 2 and "Yes." not in {r.text for r in report.recordings}
    assert any("index.tsv has no column `file`" in note for note in report.notes)
    assert "metadata.csv has no lines file|text and is ignored" in report.notes


def test_the_folder_around_a_recording_can_name_its_speaker(tmp_path):
    fill(tmp_path, ["train/ann/a.wav", "train/bob/b.wav", "dev/cleo/c.wav"])
    report = scan(tmp_path, RATE_HZ, ScanRules(speaker_folders=True))
    assert [r.speaker for r in report.recordings] == ["cleo", "ann", "bob"]
    assert any("speakers of dev that train does not have: 1: cleo" in n for n in report.notes)


def test_the_hash_split_is_stable_near_its_share_and_never_empty(tmp_path):
    names = [f"{number}.wav" for number in range(120)]
    for number, name in enumerate(names):
        put(tmp_path / name, sound(number, seconds=0.01))
    rules = ScanRules(min_seconds=0.0)
    first = splits(scan(tmp_path, RATE_HZ, rules))
    dev = [name for name, split in first.items() if split == "dev"]
    assert 1 <= len(dev) <= 15
    for number in range(120, 124):
        put(tmp_path / f"{number}.wav", sound(number, seconds=0.01))
    again = splits(scan(tmp_path, RATE_HZ, rules))
    assert {name: again[name] for name in names} == first
    assert set(splits(scan(tmp_path, RATE_HZ, ScanRules(0.0, dev_share=0.0))).values()) == {"train"}


@pytest.mark.parametrize("names", [["a.wav", "b.wav"], ["x.wav", "y.wav", "z.wav"]])
def test_few_recordings_still_give_one_to_each_split(tmp_path, names):
    fill(tmp_path, names)
    for share in (0.001, 0.999):
        found = splits(scan(tmp_path, RATE_HZ, ScanRules(dev_share=share)))
        assert set(found.values()) == {"train", "dev"}


def test_the_same_sound_is_never_in_both_splits(tmp_path):
    fill(tmp_path, ["train/a.wav", "train/b.wav", "dev/c.wav"])
    put(tmp_path / "dev/again.flac", soundfile.read(tmp_path / "train/b.wav")[0])
    report = scan(tmp_path, RATE_HZ)
    assert splits(report) == {"train/a.wav": "train", "dev/again.flac": "dev", "dev/c.wav": "dev"}
    assert left_out(report) == {"train/b.wav": "a copy"}
    digests = [r.measured.digest for r in report.recordings]
    assert len(set(digests)) == len(digests)


def test_a_folder_that_leads_into_itself_is_searched_once(tmp_path):
    fill(tmp_path, ["in/a.wav", "in/b.wav"])
    (tmp_path / "in" / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert set(splits(scan(tmp_path, RATE_HZ))) == {"in/a.wav", "in/b.wav"}


def test_recordings_in_hidden_folders_and_those_of_an_archive_are_named_and_not_read(tmp_path):
    fill(tmp_path, ["one/a.wav", "two/b.wav", ".x/c.wav", "one/__MACOSX/d.wav"])
    report = scan(tmp_path, RATE_HZ, ScanRules(speaker_folders=True))
    assert sorted(r.name for r in report.recordings) == ["one/a.wav", "two/b.wav"]
    folders = "2: .x (1 file), one/__MACOSX (1 file)"
    assert report.notes[0].endswith(f"ignored: {folders}")


def test_recordings_below_the_rate_are_noted(tmp_path):
    fill(tmp_path, ["a.wav", "b.wav"])
    assert any("stored below 24000 Hz" in note for note in scan(tmp_path, 24000).notes)
    assert scan(tmp_path, RATE_HZ).notes == ()


def test_cached_numbers_are_those_measured_and_follow_a_change(tmp_path, monkeypatch):
    fill(tmp_path / "data", ["a.wav", "b.wav"])
    first = scan(tmp_path / "data", RATE_HZ, cache_folder=tmp_path / "cache")
    put(tmp_path / "data/a.wav", sound(77, seconds=0.5))
    decoded = []
    measure = recordings.read_info
    monkeypatch.setattr(recordings, "read_info", lambda p: decoded.append(p.name) or measure(p))
    second = scan(tmp_path / "data", RATE_HZ, cache_folder=tmp_path / "cache")
    assert decoded == ["a.wav"]
    assert second.recordings == scan(tmp_path / "data", RATE_HZ).recordings
    assert second.recordings != first.recordings


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"a": 1}', '{"a": {"b": 1}}'])
def test_a_damaged_cache_is_made_anew(tmp_path, damage):
    fill(tmp_path / "data", ["a.wav", "b.wav"])
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / recordings.FILE).write_text(damage)
    report = scan(tmp_path / "data", RATE_HZ, cache_folder=tmp_path / "cache")
    assert report.recordings == scan(tmp_path / "data", RATE_HZ).recordings


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    fill(tmp_path / "data", ["a.wav", "b.wav"])
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(UserError, match=r"Cannot create the folder .*cache: File exists\."):
        scan(tmp_path / "data", RATE_HZ, cache_folder=tmp_path / "cache")


def test_the_shipped_recordings_are_whole_and_carry_texts_and_licence():
    folder = shipped.recordings_folder()
    report = scan(folder, 24000)
    assert report.left_out == () and report.clipped == () and report.notes == ()
    assert {r.speaker for r in report.recordings} == {"kathleen"}
    assert all(r.text and r.measured.sample_rate_hz == 24000 for r in report.recordings)
    texts = {split: {r.text for r in report.of(split)} for split in ("train", "dev")}
    assert not texts["train"] & texts["dev"]
    seconds = {s: sum(r.measured.seconds for r in report.of(s)) for s in ("train", "dev")}
    assert 160 < seconds["train"] < 170 and 22 < seconds["dev"] < 27
    assert "CC0 1.0 Universal" in (folder / "LICENSE").read_text()


def test_the_table_of_lj_speech_is_read(tmp_path):
    fill(tmp_path, ["wavs/LJ001-0001.wav", "wavs/LJ001-0002.wav", "wavs/LJ001-0003.wav"])
    table = "LJ001-0001|In 1455|In fourteen fifty-five\nLJ001-0002|Only said once\nLJ9|no|file\n"
    table += "LJ001-0003.wav|With its ending|\n"
    (tmp_path / "metadata.csv").write_text(table, encoding="utf-8")
    report = scan(tmp_path, RATE_HZ)
    texts = {r.name: r.text for r in report.recordings}
    assert texts == {
        "wavs/LJ001-0001.wav": "In fourteen fifty-five",
        "wavs/LJ001-0002.wav": "Only said once",
        "wavs/LJ001-0003.wav": "With its ending",
    }
    assert left_out(report) == {"LJ9": "not there"}


def test_rows_that_contradict_each_other_are_named_and_others_complete_each_other(tmp_path):
    fill(tmp_path, ["a.wav", "b.wav", "c.wav"])
    (tmp_path / "one.tsv").write_text(
        "file\ttext\tspeaker\na.wav\tYes.\tAnn\na.wav\tNo.\tAnn\nb.wav\tHm.\t\nb.wav\tHm.\t\n"
    )
    (tmp_path / "two.tsv").write_text("file\tspeaker\nb.wav\tBob\nc.wav\tAnn\nc.wav\tCleo\n")
    report = scan(tmp_path, RATE_HZ)
    said = {r.name: (r.text, r.speaker) for r in report.recordings}
    assert said == {"a.wav": ("No.", "Ann"), "b.wav": ("Hm.", "Bob"), "c.wav": ("", "Cleo")}
    note = "listed again with another text or speaker, the last row counts: 2: a.wav, c.wav"
    assert note in report.notes


def test_a_recording_of_nobody_is_no_speaker_of_its_own(tmp_path):
    fill(tmp_path, ["train/a.wav", "train/b.wav", "train/x.wav", "dev/c.wav"])
    (tmp_path / "voices.tsv").write_text(
        "file\tspeaker\ntrain/a.wav\tAnn\ntrain/b.wav\tBob\ndev/c.wav\tBob\n"
    )
    apart = scan(tmp_path, RATE_HZ, ScanRules(speaker_folders=True))
    assert left_out(apart) == {"train/x.wav": "without a speaker"}
    assert {r.speaker for r in apart.recordings} == {"Ann", "Bob"}
    together = scan(tmp_path, RATE_HZ)
    assert len(together.recordings) == 4 and "speakers: 2" in together.lines()[0]


def test_the_digest_of_dev_is_that_of_its_sounds_wherever_they_lie(tmp_path):
    for folder, seed in (("a", 2), ("b", 2), ("c", 3)):
        put(tmp_path / folder / "train/a.wav", sound(1))
        put(tmp_path / folder / "dev/b.wav", sound(seed))
    a, b, c = (scan(tmp_path / folder, RATE_HZ).dev_digest for folder in "abc")
    assert a == b != c


def test_what_is_no_file_is_named_and_never_opened(tmp_path):
    fill(tmp_path, ["a.wav", "b.wav"])
    for name in ("c.wav", "train.tsv", "metadata.csv"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "d.flac").symlink_to("nowhere")
    (tmp_path / "e.mp3").symlink_to("/dev/zero")
    done = []
    thread = threading.Thread(target=lambda: done.append(scan(tmp_path, RATE_HZ)), daemon=True)
    thread.start()
    thread.join(60)
    assert done, "it waits"
    assert len(done[0].recordings) == 2
    (note,) = [note for note in done[0].notes if "links to nothing" in note]
    assert note.endswith("ignored: 5: c.wav, d.flac, e.mp3, metadata.csv, train.tsv")
