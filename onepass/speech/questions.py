"""Intonation of questions for a voice whose training data had none.

A question is spoken like a statement, except that in a yes-no question the pitch rises from the
last stressed syllable to the end (Pierrehumbert 1980, the L* H-H% contour of American English). A
question that begins with a question word falls as a statement does.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from onepass.speech.phonemes import PRIMARY, QUESTION, STOP, Phoneme

RISE_OCTAVES = 0.5
# The first phonemes of what, when, where, why, which, who, whose and how.
QUESTION_WORDS = (
    ("w", "0"),
    ("w", "V"),
    ("w", "E"),
    ("w", "e@"),
    ("w", "aI"),
    ("w", "I", "tS"),
    ("h", "u:"),
    ("h", "aU"),
)


def as_statements(spoken: Sequence[Phoneme]) -> list[Phoneme]:
    """Return the phonemes with every question turned into a statement."""
    return [_statement(phoneme) for phoneme in spoken]


def _statement(phoneme: Phoneme) -> Phoneme:
    symbol = STOP if phoneme.symbol == QUESTION else phoneme.symbol
    clause = STOP if phoneme.clause == QUESTION else phoneme.clause
    return dataclasses.replace(phoneme, symbol=symbol, clause=clause)


def question_rise(spoken: Sequence[Phoneme], lengths: np.ndarray) -> np.ndarray:
    """Return the rise of log2(F0) in yes-no questions, float32 [frames]; 0 in other frames."""
    ends = np.cumsum(lengths)
    rise = np.zeros(int(ends[-1]), np.float32)
    start = 0
    for index, phoneme in enumerate(spoken):
        if not phoneme.is_pause:
            continue
        words = spoken[start:index]
        if phoneme.symbol == QUESTION and words and not _has_question_word(words):
            stressed = start + _last_stressed(words)
            first, last = ends[stressed] - lengths[stressed], ends[index - 1]
            rise[first:last] = RISE_OCTAVES * np.linspace(0.0, 1.0, last - first)
        start = index + 1
    return rise


def _has_question_word(words: Sequence[Phoneme]) -> bool:
    symbols = tuple(phoneme.symbol.rstrip("2#") for phoneme in words[:3])
    return any(symbols[: len(begin)] == begin for begin in QUESTION_WORDS)


def _last_stressed(words: Sequence[Phoneme]) -> int:
    stressed = [index for index, phoneme in enumerate(words) if phoneme.stress == PRIMARY]
    return stressed[-1] if stressed else 0
