# ruff: noqa: RUF001 - the letters of IPA look like others
"""Pronunciations that people write: IPA, and a dictionary of their own words."""

import subprocess

import numpy as np
import pytest
from marks import needs_espeak

from onepass import speech
from onepass.foundation.rules import UserError
from onepass.speech import phonemes as reading
from onepass.speech.markup import IPA, ipa_phonemes, ipa_word, mark_words
from onepass.speech.phonemes import COMMA, PRIMARY, QUESTION, SECONDARY, START, STOP, phonemes

NGINX = "ˈɛndʒɪnˈɛks"
SENTENCES = [
    "The quick brown fox says hello world",
    "Nation butter little thing, I am tired of fire and power",
    "She sells thirty measures of oil to a joyful judge near the church",
]


def said(spoken):
    return [phoneme.symbol for phoneme in spoken]


def test_every_voice_knows_every_phoneme_that_can_be_written(any_student):
    assert set(IPA.values()) <= speech.shipped_voice(any_student.spec).symbols.keys()


@needs_espeak
@pytest.mark.parametrize("text", SENTENCES)
def test_what_espeak_writes_is_read_as_the_text_itself(text):
    command = [reading.PROGRAM, "-q", "--ipa", "-v", reading.VOICE, text]
    written = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    found, own = ipa_phonemes(written), phonemes(text)
    like = {"@2": "@", "I2": "I", "t2": "t", "A:": "0", "aa": "a"}  # written alike
    assert said(found) == [like.get(symbol, symbol) for symbol in said(own)]
    assert [p.stress for p in found] == [p.stress for p in own]
    assert [p.starts_word for p in found] == [p.starts_word for p in own]
    assert [p.clause for p in found] == [p.clause for p in own]


@pytest.mark.parametrize(
    ("ipa", "symbols"),
    [
        ("həlˈoʊ", ["h", "@", "l", "oU"]),  # not the syllable of "little"
        ("lˈɪɾəl", ["l", "I", "t#", "@L"]),
        ("vˈɛɹi", ["v", "E", "r", "i"]),
        ("ðˈɛɹ", ["D", "e@"]),
        ("t͡ʃˈɜːt͡ʃ", ["tS", "3:", "tS"]),
        ("bˈʌʔn̩", ["b", "V", "t", "n-"]),
        ("gɡ", ["g", "g"]),
    ],
)
def test_ipa_is_read_by_its_longest_phonemes(ipa, symbols):
    assert said(ipa_word(ipa)) == symbols


def test_a_stress_is_that_of_the_next_vowel_wherever_it_is_written():
    for ipa in ("kwˈɪk", "ˈkwɪk", "'kwɪk"):
        assert [p.stress for p in ipa_word(ipa)] == [0, 0, PRIMARY, 0]
    assert [p.stress for p in ipa_word("ˌaʊtˈaʊt")] == [SECONDARY, 0, PRIMARY, 0]


def test_clauses_of_ipa_end_as_those_of_a_text():
    found = ipa_phonemes("həlˈoʊ, wˈɜːld! jˈɛs?\nnˈoʊ\n")
    assert [p.symbol for p in found if p.is_pause] == [START, COMMA, STOP, QUESTION, STOP]
    assert [p.clause for p in found if p.symbol in ("w", "j", "n")] == [STOP, QUESTION, STOP]
    assert [p.symbol for p in ipa_phonemes("nˈoʊ,") if p.is_pause] == [START, STOP]


@pytest.mark.parametrize(
    ("ipa", "line"),
    [
        ("hˈɒt", "The voice has no phoneme `ɒ`, got it in `hˈɒt`."),
        ("nˈoʊ x", "The voice has no phoneme `x`, got it in `x`."),
        ("a1", "The voice has no phoneme `a`, got it in `a1`."),
        ("", "The text is empty."),
        (" ,.\n", "There is nothing in the phonemes that can be spoken."),
        ("ˈ", "There is nothing in the phonemes that can be spoken."),
        ("n\x00", "The text holds a control character, U+0000, at 1."),
    ],
)
def test_ipa_that_cannot_be_spoken_is_refused_in_one_line(ipa, line):
    with pytest.raises(speech.TextError) as refusal:
        ipa_phonemes(ipa)
    assert str(refusal.value) == line


def test_phonemes_are_spoken_without_espeak(student, monkeypatch):
    monkeypatch.setenv("PATH", "")
    frames = speech.text_frames(student, phonemes="həlˈoʊ wˈɜːld")
    own = speech.shipped_voice(student.spec)
    lengths, hidden = own.durations(ipa_phonemes("həlˈoʊ wˈɜːld"))
    np.testing.assert_array_equal(frames, own.mel(hidden, lengths))
    longer = speech.text_frames(student, phonemes="həlˈoʊ wˈɜːld. " * 90)  # several parts
    assert len(longer) > 60 * len(frames)


@needs_espeak
@pytest.mark.parametrize(
    "text",
    [
        '"nginx"',
        "Nginx",
        "(NGINX);",
        "nginx.",
        "nginx?",
        "nginx-",
        "$nginx",
        "3 nginx nginx",
        "é nginx",
    ],
)
def test_a_word_of_the_dictionary_is_spoken_as_it_says(text):
    marks = {}
    found = said(phonemes(mark_words(f"Run {text}", {"nginx": NGINX}, marks), marks))
    joined, word = "/".join(found), "/".join(said(ipa_word(NGINX)))
    assert joined.count(word) == text.lower().count("nginx")
    assert joined.startswith(f"{START}/r/V/n/")


@needs_espeak
def test_other_words_are_spoken_as_without_a_dictionary():
    for text in ("nginxes run", "a nginx's run", "ninja", "o'nginx"):
        marks = {}
        assert mark_words(text, {"nginx": NGINX}, marks) == text
        assert phonemes(text, marks) == phonemes(text)


@needs_espeak
def test_a_dictionary_comes_before_units_and_abbreviations():
    marks = {}
    text = mark_words("It is 3 km to Dr. No", {"km": "klˈɪk", "Dr": "dˈɑːk"}, marks)
    joined = "/".join(said(phonemes(text, marks)))
    assert "k/l/I/k" in joined and "d/0/k" in joined


@needs_espeak
def test_a_character_for_private_use_in_a_text_is_no_word_of_the_dictionary(student):
    given = {"pronunciations": {"nginx": NGINX}}
    frames = speech.text_frames(student, "Run \U000f0000now", **given)
    np.testing.assert_array_equal(frames, speech.text_frames(student, "Run now"))


def test_a_file_is_read_as_words_and_their_ipa(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(
        f"\ufeff# mine\nnginx {NGINX}\n\nSQL\tˈɛs kjˈuː ˈɛl  \r\nO'Brien oʊbɹˈaɪən\n", "utf-8"
    )
    expected = {"nginx": NGINX, "SQL": "ˈɛs kjˈuː ˈɛl", "O'Brien": "oʊbɹˈaɪən"}
    found = speech.read_pronunciations(path)
    assert {word: ipa.strip() for word, ipa in found.items()} == expected


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"# a\nnginx\n", "line 2: The word nginx must have a pronunciation in IPA."),
        ("a ə\nb ɒ".encode(), "line 2: The voice has no phoneme `ɒ`, got it in `ɒ`."),
        ("a ə\nb bˈiː\nA ˈeɪ".encode(), "line 3: A is on line 1 already."),
        ("-- ə".encode(), "line 1: A pronunciation must be of one word, got '--'."),
    ],
)
def test_a_bad_line_of_a_file_is_named_by_its_number(tmp_path, content, line):
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(UserError) as refusal:
        speech.read_pronunciations(path)
    assert str(refusal.value) == f"{path}, {line}"


def test_a_file_that_is_none_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"Cannot read .*: No such file or directory"):
        speech.read_pronunciations(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"caf\xe9 k")
    with pytest.raises(UserError, match="must be text in UTF-8"):
        speech.read_pronunciations(tmp_path / "latin")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "One of `text` and `phonemes`"),
        ({"text": "a", "phonemes": "ə"}, "One of `text` and `phonemes`"),
        ({"phonemes": "ə", "pronunciations": {"a": "ə"}}, "must not be given with `phonemes`"),
        ({"phonemes": 3}, "must be a string, got int"),
        ({"text": "a", "pronunciations": ["a"]}, "must be words with their IPA, got list"),
        ({"text": "a", "pronunciations": {"a": 3}}, "a word and its IPA, got 'a' and 3"),
        ({"text": "a", "pronunciations": {"a b": "ə"}}, "of one word, got 'a b'"),
        ({"text": "a", "pronunciations": {"a": "ə", "A": "ə"}}, "each word once, got A again"),
    ],
)
def test_words_that_break_a_rule_are_refused(student, given, words):
    with pytest.raises(speech.TextError, match=words):
        speech.text_frames(student, **given)


@needs_espeak
def test_a_glottal_stop_is_no_question():
    found = phonemes("A button, here.")
    assert [p.symbol for p in found if p.is_pause] == [START, COMMA, STOP]
    assert {p.clause for p in found if p.symbol in ("b", "n-")} == {COMMA}
