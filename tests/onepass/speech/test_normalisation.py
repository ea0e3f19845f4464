"""Texts as they are read aloud, parts of long ones, and questions."""

import numpy as np
import pytest

from onepass.speech.phonemes import (
    COMMA,
    QUESTION,
    RISE_OCTAVES,
    START,
    STOP,
    Phoneme,
    as_statements,
    clauses,
    question_rise,
    read_aloud,
    text_parts,
)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("We met at 5 p.m. The sun set.", ["We met at 5 P M", "The sun set"]),
        ("At 5 p.m. Monday we left.", ["At 5 P M Monday we left"]),
        ("Apple Inc. makes them.", ["Apple Incorporated makes them"]),
        ("It is by Apple Inc. It is big.", ["It is by Apple Incorporated", "It is big"]),
        ("See Fig. 3 and Eq. 4.", ["See figure 3 and equation 4"]),
        ("See plan B. It works.", ["See plan B", "It works"]),
        ("I. A. Richards met J. R. R. Tolkien.", ["I A Richards met J R R Tolkien"]),
        ("He left the U.S. The end.", ["He left the U S", "The end"]),
        ("The U.S. Army came.", ["The U S Army came"]),
        ("Mr. Smith has 3.14 apples", ["Mr Smith has 3.14 apples"]),
        (
            "Dr. Smith met Prof. Lee vs. St. Paul",
            ["Doctor Smith met Professor Lee versus Saint Paul"],
        ),
    ],
)
def test_a_period_of_an_abbreviation_ends_a_sentence_only_where_one_ends(text, ends):
    assert clauses(text) == [(words, STOP) for words in ends]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("e.g. dogs, i.e. pets", "for example dogs, that is pets"),
        ("It cost $5.50.", "It cost 5 dollars and 50 cents."),
        ("$1, \u00a33 million, \u20ac2", "1 dollar, 3 million pounds, 2 euros"),
        ("25 \u00b0C and 5 km, 1 kg", "25 degrees Celsius and 5 kilometres, 1 kilogram"),
        ("In 1905, 1984 and the 1990s", "In 19 oh 5, 19 84 and the 19 nineties"),
        ("1500 items, 1,999 things, 3.1415", "1500 items, 1,999 things, 3.1415"),
        ("In 1984 was a war, as in 1914 as well", "In 19 84 was a war, as in 19 14 as well"),
        (
            "1905 Hz, $1905 million, the 2000s",
            "1905 hertz, 1905 million dollars, the two thousands",
        ),
        ("No. 5, pp. 3", "number 5, pages 3"),
        ("write to a@b.com", "write to a at b.com"),
    ],
)
def test_numbers_measures_and_money_are_read_as_a_person_reads_them(text, spoken):
    assert read_aloud(text) == spoken


def test_parts_of_a_text_are_the_text():
    text = "One sentence, of some words. " * 9
    parts = text_parts(text, 60)
    assert "".join(parts) == text and max(map(len, parts)) <= 60
    assert all(part.rstrip().endswith(".") for part in parts)


def _question(words, *more):
    spoken = [Phoneme(symbol, stress, clause=QUESTION) for symbol, stress in words]
    return [Phoneme(START), *spoken, Phoneme(QUESTION, clause=QUESTION), *more]


def test_a_yes_or_no_question_rises_from_its_last_stressed_phoneme_to_its_end():
    spoken = _question([("d", 0), ("u:", 2), ("t", 0), ("i:", 2), ("z", 0)])
    rise = question_rise(spoken, np.array([2, 3, 3, 3, 3, 3, 4]))
    assert not rise[:11].any() and not rise[17:].any()
    assert np.all(np.diff(rise[11:17]) > 0) and rise[16] == RISE_OCTAVES


def test_a_question_with_a_question_word_and_a_statement_do_not_rise():
    what = _question([("w", 0), ("V", 2), ("t", 0)])
    statement = [Phoneme(START), Phoneme("d"), Phoneme(COMMA), Phoneme("u:", 2), Phoneme(STOP)]
    assert not question_rise(what, np.full(5, 3)).any()
    assert not question_rise(statement, np.full(5, 3)).any()


def test_a_question_has_the_phonemes_of_a_statement():
    spoken = as_statements(_question([("d", 0), ("u:", 2)]))
    assert [phoneme.symbol for phoneme in spoken] == [START, "d", "u:", STOP]
    assert {phoneme.clause for phoneme in spoken} == {STOP}
