# ruff: noqa: RUF001 - the letters of IPA look like others
"""When words and phonemes are spoken, from the durations with which a voice speaks them.

espeak-ng joins some words, such as "of the", and reads numbers as several. So every word is also
pronounced by itself, and the shortest edit from these pronunciations to that of the clause says
which phonemes belong to which word. Phonemes that are given in IPA need no espeak-ng.
"""

import dataclasses
import functools
import html
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from onepass.foundation.files import write_text
from onepass.foundation.rules import UserError
from onepass.speech.markup import IPA, ipa_word
from onepass.speech.phonemes import PRIMARY, SECONDARY, Phoneme, TextError, pronounce_words
from onepass.speech.voice import Reading

CUE_CHARACTERS = 80  # of a subtitle, two lines of 40
_STRESSES = {PRIMARY: "ˈ", SECONDARY: "ˌ"}
_ALSO_READ = ("ʔ", "oː")  # other ways to write a phoneme
_NAMES = {symbol: ipa for ipa, symbol in reversed(IPA.items()) if ipa not in _ALSO_READ}
_VARIANT = "0123456789#-:"  # ends espeak-ng's names of variants of a phoneme


class TimedPhoneme(NamedTuple):
    """A phoneme in IPA, with its stress mark, and when it is spoken, in seconds."""

    phoneme: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class TimedWord:
    """A word and when it is spoken, in seconds from the beginning of the sound."""

    word: str  # as it is read out, such as "dollars" for "$"
    start: float
    end: float
    phonemes: tuple[TimedPhoneme, ...]  # one that two words share belongs to the first
    ends_clause: bool = False


def time_words(readings: Sequence[Reading], hop_seconds: float) -> list[TimedWord]:
    """Return the words of consecutive readings, with their times in seconds."""
    found: list[TimedWord] = []
    before = 0
    for reading in readings:
        ends = list(itertools.accumulate(reading.lengths.tolist()))
        begun = 0
        for place, phoneme in enumerate(reading.phonemes):
            if not phoneme.is_pause:
                continue
            spoken = reading.phonemes[begun:place]
            bounds = [before + end for end in (0, *ends)]
            times = [
                (bounds[n] * hop_seconds, bounds[n + 1] * hop_seconds) for n in range(begun, place)
            ]
            found += _time_clause(spoken, times, phoneme.words)
            begun = place + 1
        before += ends[-1]
    return found


def _time_clause(
    spoken: Sequence[Phoneme], times: Sequence[tuple[float, float]], words: Sequence[str]
) -> list[TimedWord]:
    found: list[TimedWord] = []
    numbered = zip(_words_of_phonemes(spoken, words), spoken, times, strict=True)
    for word, group in itertools.groupby(numbered, key=lambda each: each[0]):
        members = [(phoneme, time) for _, phoneme, time in group]
        phonemes = []
        for phoneme, (start, end) in members:
            plain = phoneme.symbol.rstrip(_VARIANT)
            ipa = _NAMES.get(phoneme.symbol) or _NAMES.get(plain, plain)
            phonemes.append(TimedPhoneme(_STRESSES.get(phoneme.stress, "") + ipa, start, end))
        start, end = members[0][1][0], members[-1][1][1]
        found.append(TimedWord(words[word], start, end, tuple(phonemes)))
    if found:
        found[-1] = dataclasses.replace(found[-1], ends_clause=True)
    return found


def _words_of_phonemes(spoken: Sequence[Phoneme], words: Sequence[str]) -> list[int]:
    """Return the index of the word of every phoneme, rising."""
    alone = _spell(words)
    if [phoneme.symbol for phoneme in spoken] != [symbol for _, symbol in alone]:
        alone = [
            (number, phoneme.symbol)
            for number, word in enumerate(pronounce_words(words))
            for phoneme in word
        ]
    return _assign([phoneme.symbol for phoneme in spoken], alone)


def _spell(words: Sequence[str]) -> list[tuple[int, str]]:
    """Return the symbols of words in IPA, each with the number of its word; [] for other words."""
    try:
        return [(n, phoneme.symbol) for n, word in enumerate(words) for phoneme in ipa_word(word)]
    except TextError:
        return []


def _assign(symbols: Sequence[str], alone: Sequence[tuple[int, str]]) -> list[int]:
    """Return for every symbol the word of the one in `alone` from which the shortest edit makes it.

    `alone` has the symbols of the words by themselves, each with the number of its word.
    """
    rows, columns = len(symbols) + 1, len(alone) + 1
    cost = [[0] * columns for _ in range(rows)]
    for i, j in itertools.product(range(rows), range(columns)):
        if not i or not j:
            cost[i][j] = i + j
            continue
        change = cost[i - 1][j - 1] + (symbols[i - 1] != alone[j - 1][1])
        cost[i][j] = min(change, cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    found = [0] * len(symbols)
    i, j = rows - 1, columns - 1
    while i:
        if j and cost[i][j] == cost[i - 1][j - 1] + (symbols[i - 1] != alone[j - 1][1]):
            i, j = i - 1, j - 1
            found[i] = alone[j][0]
        elif cost[i][j] == cost[i - 1][j] + 1:
            i -= 1
            found[i] = alone[max(0, j - 1)][0] if alone else 0
        else:
            j -= 1
    return found


Render = Callable[[Sequence[TimedWord]], str]


def check_times_path(path: Path) -> Render:
    """Return the function that formats times for a path; raise a UserError for other suffixes."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path} must end in {', '.join(FORMATS)}.")
    return FORMATS[path.suffix.lower()]


def write_times(path: Path, words: Sequence[TimedWord], seconds: float | None = None) -> int:
    """Write the times of words to a file .json, .srt or .vtt, and return the number of words.

    Words after `seconds`, the length of the sound, are left out, and the last one ends with it.
    """
    render = check_times_path(path)
    spoken = list(words) if seconds is None else _cut_words(words, seconds)
    write_text(path, render(spoken))
    return len(spoken)


def _cut_words(words: Sequence[TimedWord], seconds: float) -> list[TimedWord]:
    found = []
    for word in words:
        if word.start >= seconds:
            continue
        phonemes = tuple(
            each._replace(end=min(each.end, seconds))
            for each in word.phonemes
            if each.start < seconds
        )
        end = min(word.end, seconds)
        found.append(dataclasses.replace(word, end=end, phonemes=phonemes))
    return found


def _json(words: Sequence[TimedWord]) -> str:
    def times(each: TimedWord | TimedPhoneme) -> dict[str, float]:
        return {"start": round(each.start, 4), "end": round(each.end, 4)}

    rows = [
        {
            "word": word.word,
            **times(word),
            "phonemes": [{"phoneme": each.phoneme, **times(each)} for each in word.phonemes],
        }
        for word in words
    ]
    return json.dumps({"words": rows}, ensure_ascii=False, indent=1) + "\n"


def cues(words: Sequence[TimedWord]) -> list[list[TimedWord]]:
    """Return the words of every subtitle: up to `CUE_CHARACTERS`, and ending where clauses end."""
    found: list[list[TimedWord]] = []
    for word in words:
        line = " ".join(each.word for each in [*(found[-1] if found else []), word])
        if not found or found[-1][-1].ends_clause or len(line) > CUE_CHARACTERS:
            found.append([])
        found[-1].append(word)
    return found


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(seconds * 1000)
    whole, rest = divmod(milliseconds, 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{mark}{rest:03}"


def _srt(words: Sequence[TimedWord]) -> str:
    clock = functools.partial(_clock, mark=",")
    return "\n".join(
        f"{number}\n{clock(cue[0].start)} --> {clock(cue[-1].end)}\n"
        f"{' '.join(word.word for word in cue)}\n"
        for number, cue in enumerate(cues(words), 1)
    )


def _vtt(words: Sequence[TimedWord]) -> str:
    clock, escape = functools.partial(_clock, mark="."), functools.partial(html.escape, quote=False)
    parts = ["WEBVTT\n"]
    for cue in cues(words):
        said = [escape(cue[0].word)]
        said += [f"<{clock(word.start)}>{escape(word.word)}" for word in cue[1:]]
        parts.append(f"{clock(cue[0].start)} --> {clock(cue[-1].end)}\n{' '.join(said)}\n")
    return "\n".join(parts)


# By suffix: times of words with their phonemes; subtitles; subtitles with the time of every word.
FORMATS: dict[str, Render] = {".json": _json, ".srt": _srt, ".vtt": _vtt}
