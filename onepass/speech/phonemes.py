"""Phonemes, pauses and intonation of a text, from its spelled-out words and espeak-ng.

What espeak-ng misreads, or mistakes for the end of a sentence, is spelled out first. A question is
spoken like a statement, except that in a yes-no question the pitch rises from the last stressed
syllable to the end (Pierrehumbert 1980, the L* H-H% contour of American English).

A text that is empty, too long or cannot be spoken raises TextError, here and in the modules that
read texts; what needs espeak-ng raises EspeakError if it is not installed or fails.
"""

import dataclasses
import functools
import re
import shutil
import subprocess
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from onepass.foundation.rules import UserError

US_ENGLISH = tomllib.loads(Path(__file__).with_name("us_english.toml").read_text("utf-8"))
ALWAYS_MID_SENTENCE = US_ENGLISH["abbreviations"]["always_mid_sentence"]
SOMETIMES_LAST = US_ENGLISH["abbreviations"]["sometimes_last"]
UNITS, CURRENCIES, DECADES = (US_ENGLISH[name] for name in ("units", "currencies", "decades"))
UNCHANGED = ("hertz", "kilohertz", "megahertz")  # the plural is the same
SCALES = "thousand|million|billion|trillion"
STARTERS = "|".join(US_ENGLISH["starters"].split())

_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_MONEY = re.compile(rf"([$\u00a3\u20ac])({_NUMBER})(?: ({SCALES})\b)?")
_UNIT = re.compile(rf"({_NUMBER}) ?({'|'.join(sorted(UNITS, key=len, reverse=True))})(?![\w/])")
_DECADE = re.compile(r"\b(1[1-9]|20)(\d)0s\b")
_NO_PLURAL = "was|is|has|does|as|this|its|his|us"
_COUNTED = rf"(?:(?:kilo|mega)?hertz|{SCALES}|(?!(?:{_NO_PLURAL})\b)[a-z]+s)\b"
_YEAR = re.compile(rf"(?<![\d.,$\u00a3\u20ac])\b(1[1-9])(\d\d)\b(?![\d%]|[.,:]\d| {_COUNTED})")
_NUMBERED = re.compile(r"\b(No|Nos|pp|p)\. ?(?=\d)")
_AT = re.compile(r"(?<=\w)@(?=\w)")
_INITIAL = re.compile(rf"\b([A-Z])\.(?= (?!(?:{STARTERS})\b(?!\.))[A-Z])")
_ACRONYM = re.compile(rf"\b((?:[A-Z]\.){{2,}})(?=(\s+(?:{STARTERS})\b|\s*$)?)")
_NUMBERED_WORDS = {"No": "number", "Nos": "numbers", "pp": "pages", "p": "page"}


def _pattern(words: dict[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_MID = re.compile(rf"\b({_pattern(ALWAYS_MID_SENTENCE)})\.(?=[\s,)]|$)")
_LAST = re.compile(rf"\b({_pattern(SOMETIMES_LAST)})\.(?=(\s+[A-Z]|\s*$)?)")
_NOT_LAST = re.compile(
    r"\s+(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|January|February|March|April|May|June|July|"
    r"August|September|October|November|December|[A-Z]{2,})\b"
)


def read_aloud(text: str) -> str:
    """Return US English as it is read aloud; abbreviations keep a period where sentences end."""
    text = _AT.sub(" at ", text)
    text = _MONEY.sub(_money, text)
    text = _UNIT.sub(_measure, text)
    text = _NUMBERED.sub(lambda found: f"{_NUMBERED_WORDS[found[1]]} ", text)
    text = _MID.sub(lambda found: ALWAYS_MID_SENTENCE[found[1]], text)
    text = _LAST.sub(_maybe_last, text)
    text = _ACRONYM.sub(_acronym, text)
    text = _INITIAL.sub(r"\1", text)
    text = _DECADE.sub(_decade, text)
    return _YEAR.sub(_year, text)


def _money(found: re.Match) -> str:
    unit, part = CURRENCIES[found[1]]
    number, scale = found[2].rstrip(","), found[3]
    rest = found[2][len(number) :]
    if scale:
        return f"{number} {scale} {unit}s{rest}"
    whole, _, parts = number.partition(".")
    if len(parts) != 2:
        return f"{number} {_plural(unit, number)}{rest}"
    words = f"{whole} {_plural(unit, whole)}"
    return words + (f" and {int(parts)} {_plural(part, str(int(parts)))}" if int(parts) else "")


def _measure(found: re.Match) -> str:
    first, *others = UNITS[found[2]].split(" ")
    return " ".join([found[1], _plural(first, found[1]), *others])


def _plural(word: str, number: str) -> str:
    if number == "1" or word in UNCHANGED:
        return word
    return "pence" if word == "penny" else f"{word}s"


def _maybe_last(found: re.Match) -> str:
    ends = found[2] is not None and not _NOT_LAST.match(found.string, found.end())
    return SOMETIMES_LAST[found[1]] + ("." if ends else "")


def _acronym(found: re.Match) -> str:
    return " ".join(found[1].replace(".", "")) + ("." if found[2] is not None else "")


def _decade(found: re.Match) -> str:
    return "two thousands" if found[0] == "2000s" else f"{found[1]} {DECADES[int(found[2])]}"


def _year(found: re.Match) -> str:
    century, year = found[1], found[2]
    if year == "00":
        return f"{century} hundred"
    return f"{century} oh {year[1]}" if year[0] == "0" else f"{century} {year}"


PROGRAM = "espeak-ng"
VOICE = "en-us"
MAX_CHARACTERS = 1000
MAX_PHONEMES = 4000
TIMEOUT_SECONDS = 10.0
LINE_BYTES = 700  # espeak-ng cuts lines at 1,000 bytes, even inside a word
SEPARATOR = "[[ZZZZ]]"  # literal phonemes; texts cannot contain it, as their brackets are removed
SEPARATOR_ANSWER = "Z/Z/Z/Z"
MARK, MARK_ANSWER = " [[ZZ]] ", ["Z", "Z"]  # a character of the text that stands for a `Mark`

START, COMMA, STOP, QUESTION = "^", ",", ".", "?"
PAUSES = (START, COMMA, STOP, QUESTION)
MIN_SPEED, MAX_SPEED = 0.25, 4.0
UNSTRESSED, SECONDARY, PRIMARY = 0, 1, 2
GLOTTAL_STOP = "?"  # espeak-ng's name of it
STRESS_MARKS = {"'": PRIMARY, ",": SECONDARY, "%": UNSTRESSED, "=": UNSTRESSED}
ENDINGS = {"?": QUESTION, ".": STOP, "!": STOP, "\u2026": STOP}
SILENT = set(" .,;:!?-'\"()\u2013\u2014\u2018\u2019\u201c\u201d\u2026")

LAST_LATIN = 0x24F
SPELT_OUT = 6  # a digit or a non-Latin letter takes as long to say as this many letters
SENTENCES, CLAUSES = re.compile(r"(?<=[.!?\u2026]\s)"), re.compile(r"(?<=[,;:]\s)")
WORDS, CHARACTERS = re.compile(r"(?<=\s)"), re.compile(r"(?<=.)", re.S)

_ENDS = re.compile(
    r"[.!?\u2026]+[\"'\u201d\u2019)]*(?=\s|$)|[,;:]+(?=\s|$)|\s[-\u2013]+\s|\u2014|[()]"
)
_LANGUAGE = re.compile(r"\([a-z-]+\)")
_NAME = re.compile(r"[A-Za-z0-9@][A-Za-z0-9@:#;\-]*")


class TextError(UserError):
    """Error for a text that cannot be spoken; the message gives the reason in one line."""


class TooLongError(TextError):
    """Error for a text that would last too long; the message gives its length in one line."""


class EspeakError(UserError):
    """Error if espeak-ng is missing or fails; the message gives the reason in one line."""


@dataclasses.dataclass(frozen=True)
class Phoneme:
    """A phoneme in its clause, or a pause."""

    symbol: str  # espeak-ng's mnemonic of the phoneme, or one of `PAUSES`
    stress: int = UNSTRESSED  # or SECONDARY or PRIMARY
    starts_word: bool = False
    clause: str = STOP  # the pause that ends the phoneme's clause
    stretch: float = 1.0  # factor of its duration
    octaves: float = 0.0  # by how much it is higher
    seconds: float | None = None  # duration of a pause at any speed; None: the voice decides
    # Of a pause, the words since the last one, as they are read out.
    words: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def is_pause(self) -> bool:
        """True for a pause, False for a phoneme."""
        return self.symbol in PAUSES


@dataclasses.dataclass(frozen=True)
class Mark:
    """The meaning of a character of a text: a word, a pause, or how all that follows is spoken."""

    spoken: tuple[Phoneme, ...] = ()  # the phonemes of a word; empty if the mark is none
    seconds: float | None = None  # duration of a pause; None if the mark is none
    stretch: float | None = None  # factor of the durations of all that follows; None: as before
    octaves: float = 0.0  # by how much all that follows is higher
    word: str = ""


PLAIN = Mark(stretch=1.0)


def check_text(text: str) -> str:
    """Return the text in NFC with single spaces, without invisible characters and brackets."""
    if not isinstance(text, str):
        raise TextError(f"The text must be a string, got {type(text).__name__}.")
    if len(text) > MAX_CHARACTERS:
        raise TextError(
            f"The text may have {MAX_CHARACTERS} characters at most, got {len(text)}; "
            "speak it in parts."
        )
    for place, character in enumerate(text):
        if unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n\r":
            raise TextError(
                f"The text holds a control character, U+{ord(character):04X}, at {place}."
            )
    text = unicodedata.normalize("NFC", text)
    text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    text = " ".join(re.sub(r"[\[\]]", " ", text).split())
    if not text:
        raise TextError("The text is empty.")
    return text


def clauses(text: str) -> list[tuple[str, str]]:
    """Return the clauses of a checked text as they are read aloud, each with its closing pause."""
    text = read_aloud(text)
    found, start = [], 0
    for end in _ENDS.finditer(text):
        found.append((text[start : end.start()], ENDINGS.get(end.group().strip()[:1], COMMA)))
        start = end.end()
    found.append((text[start:], STOP))
    found = [(words.strip(), pause) for words, pause in found if set(words) - SILENT]
    if found and found[-1][1] == COMMA:
        found[-1] = (found[-1][0], STOP)
    return found


def _lines(words: str) -> list[str]:
    lines, line = [], ""
    for word in words.split():
        while len(word.encode()) > LINE_BYTES:
            lines.append(word[: LINE_BYTES // 4])
            word = word[LINE_BYTES // 4 :]
        if len(f"{line} {word}".encode()) > LINE_BYTES:
            lines.append(line)
            line = ""
        line = f"{line} {word}"
    return [line.strip() for line in [*lines, line] if line.strip()]


def _answers(spoken: list[str]) -> list[str]:
    program = shutil.which(PROGRAM)
    if program is None:
        raise EspeakError(
            f"Text needs {PROGRAM}, which is not installed; "
            f"`apt-get install {PROGRAM}` or `brew install {PROGRAM}` brings it."
        )
    lines = [line for words in spoken for line in (*_lines(words), SEPARATOR)]
    # The text is read from a pipe and never passed as an argument, so it cannot be an option.
    command = [program, "-q", "-x", "--sep=/", "-b", "1", "-v", VOICE]
    given = "".join(f"{line}\n" for line in lines).encode()
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EspeakError(f"{PROGRAM} gave no answer in {TIMEOUT_SECONDS:g} s.") from error
    except OSError as error:
        raise EspeakError(f"{PROGRAM} cannot be run: {error.strerror}.") from error
    answers = done.stdout.decode(errors="replace").split(SEPARATOR_ANSWER)
    if done.returncode or len(answers) != len(spoken) + 1:
        raise EspeakError(
            f"{PROGRAM} did not answer as expected (status {done.returncode}, "
            f"{len(answers) - 1} of {len(spoken)} clauses)."
        )
    return answers[:-1]


def _words(
    answer: str, clause: str, marks: Sequence[Mark], style: Mark
) -> tuple[list[Phoneme], Mark]:
    """Return the phonemes of espeak-ng's answer, with its marks, and the style after them."""
    found: list[Phoneme] = []
    left = iter(marks)
    answer = _LANGUAGE.sub("", answer)
    if marks:
        answer = answer.replace("/".join(MARK_ANSWER), f" {'/'.join(MARK_ANSWER)} ")
    for word in answer.split():
        pieces = word.split("/")
        if pieces == MARK_ANSWER and (mark := next(left, None)) is not None:
            style = style if mark.stretch is None else mark
            spoken: Sequence[Phoneme] = mark.spoken
        else:
            spoken = _word(pieces)
        found += [
            dataclasses.replace(
                phoneme, clause=clause, stretch=style.stretch or 1.0, octaves=style.octaves
            )
            for phoneme in spoken
        ]
    if next(left, None) is not None:
        raise EspeakError(f"{PROGRAM} did not answer as expected: a mark is missing.")
    return found, style


def _word(pieces: Sequence[str]) -> list[Phoneme]:
    found: list[Phoneme] = []
    for piece in pieces:
        marks = piece[: len(piece) - len(piece.lstrip("".join(STRESS_MARKS)))]
        symbol = piece[len(marks) :]
        if symbol == GLOTTAL_STOP:  # as in "button"; no pause
            symbol = "t"
        if _NAME.fullmatch(symbol):
            stress = max((STRESS_MARKS[mark] for mark in marks), default=UNSTRESSED)
            found.append(Phoneme(symbol, stress, not found))
    return found


def phonemes(
    text: str, marks: Mapping[str, Mark] | None = None, style: Mark = PLAIN
) -> tuple[Phoneme, ...]:
    """Return the phonemes of a text between pauses: one at the start, and one after every clause.

    The text is US English, at most MAX_CHARACTERS; numbers and symbols are read out. The `marks`
    are what its characters stand for; `style` is the mark before it that says how it is spoken.
    """
    known = marks or {}
    parts = _at_breaks(clauses(check_text(text)), known)
    lines = ["".join(MARK if c in known else c for c in words) for words, *_ in parts]
    answers = _answers(lines) if parts else []
    found = [Phoneme(START, clause=parts[0][1])] if parts else []
    for (words, pause, seconds), answer in zip(parts, answers, strict=True):
        spoken, style = _words(answer, pause, [known[c] for c in words if c in known], style)
        if spoken:
            written = "".join(known[c].word if c in known else c for c in words).split()
            said = tuple(word for word in written if set(word) - SILENT)
            found += [*spoken, Phoneme(pause, clause=pause, seconds=seconds, words=said)]
        elif seconds is not None:
            longer = seconds + (found[-1].seconds or 0.0)
            found[-1] = dataclasses.replace(found[-1], seconds=longer)
    if len(found) < 2:
        raise TextError("There is nothing in the text that can be spoken.")
    if len(found) > MAX_PHONEMES:
        raise TextError(
            f"The text may have {MAX_PHONEMES} phonemes at most, got {len(found)}; "
            "speak it in parts."
        )
    return close_sentence(found)


def pronounce_words(words: Sequence[str]) -> list[list[Phoneme]]:
    """Return the phonemes of words that are spoken one by one."""
    return [
        [phoneme for piece in answer.split() for phoneme in _word(piece.split("/"))]
        for answer in map(functools.partial(_LANGUAGE.sub, ""), _answers(list(words)))
    ]


def _at_breaks(
    parts: Sequence[tuple[str, str]], marks: Mapping[str, Mark]
) -> list[tuple[str, str, float | None]]:
    """Return the words, pause and its seconds of clauses, which also end at marks of pauses."""
    found: list[tuple[str, str, float | None]] = []
    for words, pause in parts:
        start = 0
        for place, character in enumerate(words):
            mark = marks.get(character)
            if mark is not None and mark.seconds is not None:
                found.append((words[start:place], COMMA, mark.seconds))
                start = place + 1
        found.append((words[start:], pause, None))
    return found


def close_sentence(spoken: Sequence[Phoneme]) -> tuple[Phoneme, ...]:
    """Return phonemes whose last clause ends as a sentence does."""
    if spoken[-1].symbol != COMMA:
        return tuple(spoken)
    start = max((n for n, each in enumerate(spoken[:-1]) if each.is_pause), default=-1) + 1
    last = [dataclasses.replace(phoneme, clause=STOP) for phoneme in spoken[start:]]
    first = [dataclasses.replace(spoken[0], clause=STOP)] if start == 1 else [*spoken[:start]]
    return (*first, *last[:-1], dataclasses.replace(last[-1], symbol=STOP))


def spoken_length(words: str) -> int:
    """Return a text's number of characters; each one in `spelt_out` counts as SPELT_OUT."""
    return len(words) + (SPELT_OUT - 1) * len(spelt_out(words))


def characters_at(speed: float, most: int = MAX_CHARACTERS) -> int:
    """Return how many characters (1 to `most`) take as long at `speed` as `most` at speed 1."""
    return max(1, int(most * min(1.0, speed)))


def spelt_out(words: str) -> list[str]:
    """Return the characters of a text that are read out letter by letter or as words."""
    return [c for c in words if c.isnumeric() or (c.isalpha() and ord(c) > LAST_LATIN)]


def text_parts(words: str, most: int = MAX_CHARACTERS) -> list[str]:
    """Split a text between sentences into parts with a `spoken_length` of at most `most`.

    A sentence that is too long is split between clauses, else between words, else anywhere.
    """
    parts = [words]
    for boundary in (SENTENCES, CLAUSES, WORDS, CHARACTERS):
        pieces = (boundary.split(part) if spoken_length(part) > most else [part] for part in parts)
        parts = _pack_pieces([piece for each in pieces for piece in each], most)
    return [part for part in parts if part.strip()]


def _pack_pieces(pieces: list[str], most: int) -> list[str]:
    packed, length = [""], 0
    for piece in pieces:
        more = spoken_length(piece)
        if length + more > most:
            packed.append("")
            length = 0
        packed[-1] += piece
        length += more
    return packed


RISE_OCTAVES = 0.5
# The first phonemes of what, when, where, why, which, who, whose and how.
QUESTION_WORDS = (
    *(("w", "0"), ("w", "V"), ("w", "E"), ("w", "e@"), ("w", "aI")),
    *(("w", "I", "tS"), ("h", "u:"), ("h", "aU")),
)


def as_statements(spoken: Sequence[Phoneme]) -> list[Phoneme]:
    """Return the phonemes with every question turned into a statement."""

    def stated(pause: str) -> str:
        return STOP if pause == QUESTION else pause

    return [
        dataclasses.replace(phoneme, symbol=stated(phoneme.symbol), clause=stated(phoneme.clause))
        for phoneme in spoken
    ]


def question_rise(spoken: Sequence[Phoneme], lengths: np.ndarray) -> np.ndarray:
    """Return the rise of log2(F0) in yes-no questions, float32 [frames]; 0 in other frames."""
    ends = np.cumsum(lengths)
    rise = np.zeros(int(ends[-1]), np.float32)
    start = 0
    for index, phoneme in enumerate(spoken):
        if not phoneme.is_pause:
            continue
        symbols = tuple(word.symbol.rstrip("2#") for word in spoken[start:index][:3])
        asks_yes_or_no = not any(symbols[: len(begin)] == begin for begin in QUESTION_WORDS)
        if phoneme.symbol == QUESTION and symbols and asks_yes_or_no:
            primary = (n for n in range(start, index) if spoken[n].stress == PRIMARY)
            stressed = max(primary, default=start)
            first, last = ends[stressed] - lengths[stressed], ends[index - 1]
            rise[first:last] = RISE_OCTAVES * np.linspace(0.0, 1.0, last - first)
        start = index + 1
    return rise
