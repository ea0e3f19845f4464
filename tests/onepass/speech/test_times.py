# ruff: noqa: RUF001 - the letters of IPA look like others
"""When words and phonemes are spoken: the durations of the frames, word by word."""

import itertools
import json
import re

import numpy as np
import pytest
from marks import needs_espeak

import onepass
from onepass import speech
from onepass.speech import phonemes as reading
from onepass.speech.times import TimedPhoneme, TimedWord, _assign, cues


def seconds_of(student, *text, **options):
    frames = speech.text_frames(student, *text, **options)
    return len(frames) * speech.shipped_voice(student.spec).hop_seconds


TEXTS = {
    "Hello world, this is the end of the story.": "Hello world this is the end of the story",
    "At 4:30 P.M. in the U.S.A. - Dr. Smith isn't there!": (
        "At 4:30 P M in the U S A Doctor Smith isn't there"
    ),
    "In 1999 we paid $5.20 for 23 of them...": (
        "In 19 99 we paid 5 dollars and 20 cents for 23 of them"
    ),
    '<speak>Wait <break time="2s"/> for <emphasis>me</emphasis>.</speak>': "Wait for me",
    "word " * 400: "word " * 400,
}


@needs_espeak
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:12])
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_words_come_in_order_without_overlap_within_the_sound(student, text, speed):
    words = speech.text_times(student, text, speed=speed)
    assert [word.word for word in words] == TEXTS[text].split()
    bounds = [time for word in words for time in (word.start, word.end)]
    assert bounds == sorted(bounds) and bounds[0] > 0.0
    whole = seconds_of(student, text, speed=speed)
    assert bounds[-1] < whole < bounds[-1] + 0.5 / speed + 0.2
    for word in words:
        times = [time for phoneme in word.phonemes for time in (phoneme.start, phoneme.end)]
        assert times == sorted(times) and (times[0], times[-1]) == (word.start, word.end)
        assert all(a == b for a, b in zip(times[1:-1:2], times[2::2], strict=True))


@needs_espeak
def test_a_pause_is_between_the_words_and_as_long_as_it_is_written(student):
    text = '<speak>Wait <break time="2s"/> for me.</speak>'
    wait, then, _ = speech.text_times(student, text)
    assert then.start - wait.end == pytest.approx(2.0, abs=0.01) and wait.ends_clause


@needs_espeak
def test_every_word_has_its_own_phonemes_where_espeak_joins_words_or_reads_numbers(student):
    words = speech.text_times(student, "At 4:30 in the end of the story.")
    said = {word.word: "".join(each.phoneme for each in word.phonemes) for word in words}
    assert said["4:30"] == "fˈoːɹθˈɜːɾi" and said["in"] == "ɪn" and said["story"] == "stˈoːɹɹi"
    assert [word.word for word in words] == ["At", "4:30", "in", "the", "end", "of", "the", "story"]


@needs_espeak
def test_a_word_of_the_dictionary_keeps_its_letters_and_has_the_phonemes_given(student):
    words = speech.text_times(
        student, "Start Nginx, nginx!", pronunciations={"nginx": "ˈɛndʒɪnˈɛks"}
    )
    assert [word.word for word in words] == ["Start", "Nginx", "nginx"]
    for word in words[1:]:
        assert "".join(each.phoneme for each in word.phonemes) == "ˈɛndʒɪnˈɛks"


def test_phonemes_in_ipa_are_timed_without_espeak(student, monkeypatch):
    monkeypatch.setattr(reading.shutil, "which", lambda program: None)
    ipa = "həlˈoʊ, ðə wˈɜːld"
    words = speech.text_times(student, phonemes=ipa)
    assert [word.word for word in words] == ["həlˈoʊ", "ðə", "wˈɜːld"]
    assert ["".join(p.phoneme for p in word.phonemes) for word in words] == [w.word for w in words]
    assert words[-1].end < seconds_of(student, phonemes=ipa)


@pytest.mark.parametrize(
    ("symbols", "alone", "words"),
    [
        ("ab", [(0, "a"), (1, "b")], [0, 1]),
        ("abx", [(0, "a"), (1, "b")], [0, 1, 1]),
        ("xab", [(0, "a"), (1, "b")], [0, 0, 1]),
        ("ac", [(0, "a"), (1, "b"), (2, "c")], [0, 2]),
        ("x", [], [0]),
        ("aaa", [(0, "a"), (1, "a"), (2, "a")], [0, 1, 2]),
    ],
)
def test_phonemes_belong_to_the_words_of_the_shortest_edit(symbols, alone, words):
    assert _assign(symbols, alone) == words


def word_at(start, text="word", ends=False):
    return TimedWord(text, start, start + 0.5, (), ends)


def test_a_subtitle_ends_with_its_clause_and_has_80_characters_at_most():
    words = [word_at(n, ends=n == 2) for n in range(30)]
    lines = [" ".join(word.word for word in cue) for cue in cues(words)]
    assert lines[0] == "word word word" and all(len(line) <= 80 for line in lines)
    assert " ".join(lines) == " ".join(["word"] * 30)
    assert [w.word for w in cues([word_at(0, "w" * 200)])[0]] == ["w" * 200]


def test_files_hold_the_times_to_the_millisecond_and_no_markup_of_the_text(tmp_path):
    words = [word_at(0.25, "a<b>"), word_at(3661.9996, "&c", ends=True), word_at(4000.0)]
    for suffix in ("json", "srt", "vtt"):
        assert speech.write_times(tmp_path / f"x.{suffix}", words, seconds=4000.0) == 2
    rows = json.loads((tmp_path / "x.json").read_text())["words"]
    assert [(row["word"], row["start"], row["end"]) for row in rows] == [
        ("a<b>", 0.25, 0.75),
        ("&c", 3661.9996, 3662.4996),
    ]
    assert (tmp_path / "x.srt").read_text() == "1\n00:00:00,250 --> 01:01:02,500\na<b> &c\n"
    assert (tmp_path / "x.vtt").read_text() == (
        "WEBVTT\n\n00:00:00.250 --> 01:01:02.500\na&lt;b&gt; <01:01:02.000>&amp;c\n"
    )


def test_times_end_with_the_sound(tmp_path):
    phonemes = (("a", 0.2, 0.5), ("b", 0.5, 0.9), ("c", 0.9, 1.2))
    words = [TimedWord("one", 0.2, 1.2, tuple(itertools.starmap(TimedPhoneme, phonemes)))]
    assert speech.write_times(tmp_path / "x.json", words, seconds=0.75) == 1
    (row,) = json.loads((tmp_path / "x.json").read_text())["words"]
    assert row["end"] == 0.75
    assert [(each["phoneme"], each["end"]) for each in row["phonemes"]] == [("a", 0.5), ("b", 0.75)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--recording", "x.wav", "--times", "w.json"], "`--times` needs `--text` or `--phonemes`"),
        (["--phonemes", "ə", "--times", "w.txt"], r"w\.txt must end in \.json, \.srt, \.vtt"),
        (["--phonemes", "ə", "--times", "no/w.srt"], "there is no folder no to write w.srt to"),
    ],
)
def test_times_that_cannot_be_written_are_a_mistake(tmp_path, capsys, options, why):
    assert onepass.main(["sample", "shipped", "--out", str(tmp_path / "o"), *options]) == 2
    assert re.search(why, capsys.readouterr().err)
    assert not (tmp_path / "o").exists()


def test_the_command_writes_the_times_of_the_sound_it_writes(tmp_path, capsys):
    import soundfile

    times = tmp_path / "w.json"
    words = ["sample", "shipped", "--out", str(tmp_path), "--phonemes", "həlˈoʊ, wˈɜːld"]
    assert onepass.main([*words, "--times", str(times), "--seconds", "0.6"]) == 0
    assert "times of 1 word\n" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.wav")
    assert soundfile.info(path).duration == pytest.approx(0.6, abs=0.001)
    (row,) = json.loads(times.read_text())["words"]  # the second begins later
    assert row["word"] == "həlˈoʊ" and 0.0 < row["start"] < row["end"] < 0.6
    assert np.all(np.diff([each["start"] for each in row["phonemes"]]) > 0)
    assert onepass.main([*words, "--times", str(times)]) == 2  # it is there
