"""A long text in parts that are spoken one after the other."""

import re

from speech.phonemes import MAX_CHARACTERS

LAST_LATIN = 0x24F
SPELT_OUT = 6  # letters that a digit, or a letter of another script, sounds as long as
SENTENCES, CLAUSES = re.compile(r"(?<=[.!?\u2026]\s)"), re.compile(r"(?<=[,;:]\s)")
WORDS, CHARACTERS = re.compile(r"(?<=\s)"), re.compile(r"(?<=.)", re.S)


def spoken_length(words: str) -> int:
    """Return the characters of a text, with digits and letters of other scripts spelt out."""
    return len(words) + (SPELT_OUT - 1) * len(spelt_out(words))


def spelt_out(words: str) -> list[str]:
    """Return the characters of a text that are read out letter by letter or as words."""
    return [c for c in words if c.isnumeric() or (c.isalpha() and ord(c) > LAST_LATIN)]


def text_parts(words: str, most: int = MAX_CHARACTERS) -> list[str]:
    """Return a text in parts of at most `most` spoken characters, split between sentences.

    A sentence that is longer is split between clauses, else between words, else anywhere.
    """
    parts = [words]
    for boundary in (SENTENCES, CLAUSES, WORDS, CHARACTERS):
        pieces = (boundary.split(part) if spoken_length(part) > most else [part] for part in parts)
        parts = _packed([piece for each in pieces for piece in each], most)
    return [part for part in parts if part.strip()]


def _packed(pieces: list[str], most: int) -> list[str]:
    packed, length = [""], 0
    for piece in pieces:
        more = spoken_length(piece)
        if length + more > most:
            packed.append("")
            length = 0
        packed[-1] += piece
        length += more
    return packed
