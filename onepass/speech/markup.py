# ruff: noqa: RUF001 - the letters of IPA look like others
"""Marks that people write into a text: a subset of SSML 1.1 (W3C 2010), and pronunciations.

A text whose root is <speak> is SSML. <break>, <emphasis> and the rate of <prosody> are obeyed.
Other tags are left out, and what they enclose is spoken. A document may have no DTD, without which
XML has no entities to expand but the five of its own.

Pronunciations are IPA as espeak-ng writes it, and a dictionary of their own. espeak-ng has one way
to write each of its phonemes in IPA, `espeak-ng --ipa -v en-us`. It is read back from the left, by
the longest phoneme that fits. IPA needs no espeak-ng.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from xml.parsers import expat

from onepass.foundation.rules import UserError
from onepass.speech.phonemes import (
    COMMA,
    ENDINGS,
    MAX_SPEED,
    MIN_SPEED,
    PLAIN,
    PRIMARY,
    SECONDARY,
    START,
    STOP,
    UNSTRESSED,
    US_ENGLISH,
    Mark,
    Phoneme,
    TextError,
    check_text,
    close_sentence,
)

MAX_BREAK_SECONDS = 10.0
BREAKS, RATES, EMPHASES = (US_ENGLISH["ssml"][name] for name in ("breaks", "rates", "emphases"))
ROOT = "speak"
OBEYED = {"break": ("time", "strength"), "emphasis": ("level",), "prosody": ("rate",)}
Value = TypeVar("Value")

_SSML = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?<(?:speak[\s/>]|!DOCTYPE\s)")
_TAG = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>")  # a tag of SSML or HTML
_TIME = re.compile(r"\+?(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})(ms|s)")
_PERCENT = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)%")


def is_ssml(text: str) -> bool:
    """Return whether a text is a document of SSML, which begins with <speak>, or as XML does."""
    return _SSML.match(text) is not None


class Ssml:
    """The `text` of a document of SSML, with characters of `marks` for pauses and changes."""

    def __init__(self, document: str, marks: dict[str, Mark]):
        self._marks, self._styles, self._parts = marks, [PLAIN], [""]
        self.left_out: list[str] = []  # tags and attributes that are not obeyed, as they come
        parser = expat.ParserCreate("utf-8")
        parser.StartDoctypeDeclHandler = _refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._parts.append
        try:
            parser.Parse(document.strip(), True)
        except expat.ExpatError as error:
            place = f"line {error.lineno}, column {error.offset + 1}"
            raise TextError(
                f"The SSML must be well-formed XML, got {expat.ErrorString(error.code)} at {place}."
            ) from error
        except UnicodeEncodeError as error:
            raise TextError("The SSML must be text, got half a character.") from error
        self.text = "".join(self._parts)

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        style = self._styles[-1]
        if name == "break":
            self._add(Mark(seconds=_break_seconds(attributes)))
        elif name == "emphasis":
            level = attributes.get("level", "moderate")
            stretch, octaves = _one_of(EMPHASES, "level", "emphasis", level)
            style = _style(style, stretch, octaves)
        elif name == "prosody":
            style = _style(style, 1.0 / _rate(attributes.get("rate", "medium")), 0.0)
        elif name != ROOT or len(self._styles) > 1:
            self._leave_out(f"<{name}>")
        for attribute in attributes if name in OBEYED else ():
            if attribute not in OBEYED[name]:
                self._leave_out(f"`{attribute}` of <{name}>")
        self._parts.append(" ")
        if style != self._styles[-1]:
            self._add(style)
        self._styles.append(style)

    def _end(self, name: str) -> None:
        style = self._styles.pop()
        self._parts.append(" ")
        if style != self._styles[-1]:
            self._add(self._styles[-1])

    def _add(self, mark: Mark) -> None:
        self._parts.append(f" {new_mark(self._marks, mark)} ")

    def _leave_out(self, name: str) -> None:
        if name not in self.left_out:
            self.left_out.append(name)


def _refuse_doctype(*given: object) -> None:
    raise TextError("The SSML must have no document type (<!DOCTYPE>), and so no entities.")


def _style(outer: Mark, stretch: float, octaves: float) -> Mark:
    whole = min(1.0 / MIN_SPEED, max(1.0 / MAX_SPEED, (outer.stretch or 1.0) * stretch))
    return Mark(stretch=whole, octaves=max(-0.5, min(0.5, outer.octaves + octaves)))


def _break_seconds(attributes: Mapping[str, str]) -> float:
    time = attributes.get("time")
    if time is None:
        strength = attributes.get("strength", "medium")
        return float(_one_of(BREAKS, "strength", "break", strength))
    found = _TIME.fullmatch(time.strip())
    seconds = float(found[1]) / (1000.0 if found[2] == "ms" else 1.0) if found else -1.0
    if not 0.0 <= seconds <= MAX_BREAK_SECONDS:
        raise TextError(
            f"`time` of <break> must be such as 500ms or 1.5s, at most {MAX_BREAK_SECONDS:g}s, "
            f"got {time!r}."
        )
    return seconds


def _rate(value: str) -> float:
    found = _PERCENT.fullmatch(value.strip())
    rate = float(found[1]) / 100.0 if found else RATES.get(value.strip(), 0.0)
    if not MIN_SPEED <= rate <= MAX_SPEED:
        raise TextError(
            f"`rate` of <prosody> must be {', '.join(RATES)} or from {MIN_SPEED:.0%} to "
            f"{MAX_SPEED:.0%}, got {value!r}."
        )
    return rate


def _one_of(known: Mapping[str, Value], attribute: str, tag: str, value: str) -> Value:
    if value not in known:
        rule = f"must be one of {', '.join(known)}"
        raise TextError(f"`{attribute}` of <{tag}> {rule}, got {value!r}.")
    return known[value]


def note_on_markup(text: str) -> str | None:
    """Return a note on tags that are not obeyed, None if there are none.

    In SSML they are left out, in a plain text they are read aloud.
    """
    if is_ssml(text):
        names = Ssml(text, {}).left_out
        return f"not obeyed and left out: {', '.join(names)}" if names else None
    found = _TAG.search(text)
    if found is None:
        return None
    return f"{found[0]} and other tags are read aloud: SSML must begin with <speak>"


VOWELS = US_ENGLISH["ipa"]["vowels"]
CONSONANTS = US_ENGLISH["ipa"]["consonants"] | {letter: letter for letter in "bdfghjklmnprstvwz"}
IPA = {**VOWELS, **CONSONANTS}
STRESSES = {"ˈ": PRIMARY, "'": PRIMARY, "ˌ": SECONDARY}
ENDS = {**ENDINGS, ",": COMMA, ";": COMMA, ":": COMMA, "\n": COMMA}
MAX_WORDS = 10_000
FIRST_MARK = 0xF0000  # a plane of Unicode for private use, which no text needs

_SYMBOL = re.compile("|".join(sorted(map(re.escape, IPA), key=len, reverse=True)))
_TIES = re.compile("[\u0361\u035c\u200d]")
_CLAUSE = re.compile(f"[{re.escape(''.join(ENDS))}]+")
_MARKS = re.compile("[\U000f0000-\U000ffffd]")


def ipa_word(word: str, clause: str = STOP) -> tuple[Phoneme, ...]:
    """Return the phonemes of one word in IPA.

    A stress mark is that of the next vowel, before which espeak-ng writes it.
    """
    found: list[Phoneme] = []
    rest, stress = _TIES.sub("", unicodedata.normalize("NFC", word)), UNSTRESSED
    while rest:
        if rest[0] in STRESSES:
            stress, rest = STRESSES[rest[0]], rest[1:]
            continue
        name = _longest(rest)
        if name is None:
            raise TextError(f"The voice has no phoneme `{rest[0]}`, got it in `{word}`.")
        is_vowel = name in VOWELS
        found.append(Phoneme(IPA[name], stress if is_vowel else UNSTRESSED, not found, clause))
        stress = UNSTRESSED if is_vowel else stress
        rest = rest[len(name) :]
    return tuple(found)


def _longest(rest: str) -> str | None:
    found = _SYMBOL.match(rest)
    if found is None:
        return None
    name, after = found[0], rest[found.end() :].lstrip("".join(STRESSES))
    following = _SYMBOL.match(after)
    # A consonant between two vowels belongs to the second: hello, very.
    if name[:-1] in VOWELS and name[-1] in CONSONANTS and following and following[0] in VOWELS:
        return name[:-1]
    return name


def ipa_phonemes(text: str) -> tuple[Phoneme, ...]:
    """Return the phonemes of a text in IPA, between pauses as `phonemes.phonemes` has them.

    Clauses end with the same marks as in a text; a new line is a comma.
    """
    if isinstance(text, str):
        text = text.strip().replace("\r\n", "\n").replace("\n", " , ")
    text = check_text(text)
    found: list[Phoneme] = [Phoneme(START)]
    ends = [*_CLAUSE.finditer(text)]
    starts = [0, *(end.end() for end in ends)]
    for start, end in zip(starts, [*ends, None], strict=True):
        marks = [] if end is None else sorted(end[0], key=lambda mark: ENDS[mark] == COMMA)
        pause = ENDS[marks[0]] if marks else STOP
        words = text[start : None if end is None else end.start()].split()
        said = [phoneme for word in words for phoneme in ipa_word(word, pause)]
        written = tuple(word for word in words if ipa_word(word))
        found += [*said, Phoneme(pause, clause=pause, words=written)] if said else []
    if len(found) < 2:
        raise TextError("There is nothing in the phonemes that can be spoken.")
    found[0] = dataclasses.replace(found[0], clause=found[1].clause)
    return close_sentence(found)


def check_pronunciations(pronunciations: Mapping[str, str]) -> dict[str, tuple[Phoneme, ...]]:
    """Return the phonemes of the words of a dictionary, {word: IPA}; words ignore case."""
    if not isinstance(pronunciations, Mapping):
        kind = type(pronunciations).__name__
        raise TextError(f"`pronunciations` must be words with their IPA, got {kind}.")
    if len(pronunciations) > MAX_WORDS:
        raise TextError(
            f"`pronunciations` must have {MAX_WORDS} words at most, got {len(pronunciations)}."
        )
    found: dict[str, tuple[Phoneme, ...]] = {}
    for word, ipa in pronunciations.items():
        key, spoken = _entry(word, ipa)
        if key in found:
            raise TextError(f"`pronunciations` must have each word once, got {word} again.")
        found[key] = spoken
    return found


def _entry(word: str, ipa: str) -> tuple[str, tuple[Phoneme, ...]]:
    """Return a word in the form in which words are compared, and its phonemes."""
    if not isinstance(word, str) or not isinstance(ipa, str):
        raise TextError(f"A pronunciation must be a word and its IPA, got {word!r} and {ipa!r}.")
    key = unicodedata.normalize("NFC", word).casefold()
    if key.split() != [key] or not any(character.isalnum() for character in key):
        raise TextError(f"A pronunciation must be of one word, got {word!r}.")
    spoken = tuple(phoneme for part in ipa.split() for phoneme in ipa_word(part))
    if not spoken:
        raise TextError(f"The word {word} must have a pronunciation in IPA.")
    return key, spoken


def read_pronunciations(path: str | Path) -> dict[str, str]:
    """Return a dictionary {word: IPA} of a text file, for `text_frames`.

    A line is a word, white space and its pronunciation in IPA as espeak-ng writes it. Empty lines
    and lines that begin with # are skipped; one that breaks a rule is a UserError with its number.
    """
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be text in UTF-8.") from error
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from error
    found: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        word, *ipa = line.split(maxsplit=1)
        try:
            key, _ = _entry(word, "".join(ipa))
        except TextError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
        if key in numbers:
            raise UserError(f"{path}, line {number}: {word} is on line {numbers[key]} already.")
        numbers[key], found[word] = number, "".join(ipa)
    return found


def mark_words(text: str, pronunciations: Mapping[str, str], marks: dict[str, Mark]) -> str:
    """Return a text whose words in the dictionary are single characters, and add these to `marks`.

    A word counts as a whole, with or without capitals, before anything else is read out.
    """
    known = check_pronunciations(pronunciations)
    if not known:
        return text
    characters: dict[str, str] = {}

    def mark(found: re.Match[str]) -> str:
        word = found[0]
        if word not in characters and word.casefold() in known:
            characters[word] = new_mark(marks, Mark(known[word.casefold()], word=word))
        return characters.get(word, word)

    names = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w'’])(?:{names})(?![\w]|['’]\w)", re.IGNORECASE)
    text = unicodedata.normalize("NFC", text)
    return pattern.sub(mark, text)


def new_mark(marks: dict[str, Mark], mark: Mark) -> str:
    """Return a character for a mark, and add it to `marks`."""
    character = chr(FIRST_MARK + len(marks))
    marks[character] = mark
    return character


def without_marks(text: str) -> str:
    """Return a text without the characters that stand for marks."""
    return _MARKS.sub(" ", text) if isinstance(text, str) else text
