"""Phonemes and durations as the numeric inputs of the networks."""

from collections.abc import Mapping, Sequence

import numpy as np

from onepass.speech.phonemes import COMMA, PRIMARY, QUESTION, SECONDARY, Phoneme

CONTEXT_CHANNELS = 10
POSITION_CHANNELS = 4
FAR = 20  # limit of distances, in phonemes or frames
UNKNOWN = 0  # reserved: no symbol has this number
# Replacements for phonemes that English recordings lack, by first letter of the symbol.
NEAREST_SYMBOLS = {
    "J": "j",
    "L": "l",
    "O": "O:",
    "Q": "g",
    "R": "r",
    "X": "k",
    "c": "k",
    "e": "eI",
    "o": "oU",
    "q": "k",
    "u": "u:",
    "x": "h",
    "y": "u:",
}
ANY_VOWEL = "@"


def numbers(spoken: Sequence[Phoneme], symbols: Mapping[str, int]) -> np.ndarray:
    """Return the number of each phoneme's symbol, or of the closest known symbol, int32 [phonemes].

    espeak-ng appends marks to the names of variants ("I2", "a#"): marks are removed until the name
    is known. A symbol with no known counterpart becomes the schwa, or UNKNOWN if `symbols` has no
    schwa.
    """
    return np.array([_number(p.symbol, symbols) for p in spoken], np.int32)


def _number(symbol: str, symbols: Mapping[str, int]) -> int:
    for length in range(len(symbol), 0, -1):
        if symbol[:length] in symbols:
            return symbols[symbol[:length]]
    return symbols.get(NEAREST_SYMBOLS.get(symbol[:1], ANY_VOWEL), symbols.get(ANY_VOWEL, UNKNOWN))


def contexts(spoken: Sequence[Phoneme]) -> np.ndarray:
    """Return each phoneme's stress, word boundaries, kind of clause and position in the clause.

    The result is float32 [phonemes, CONTEXT_CHANNELS].
    """
    rows = np.zeros((len(spoken), CONTEXT_CHANNELS), np.float32)
    start = 0
    for place, phoneme in enumerate(spoken):
        following = spoken[place + 1] if place + 1 < len(spoken) else None
        rows[place, :7] = (
            phoneme.stress == PRIMARY,
            phoneme.stress == SECONDARY,
            phoneme.starts_word,
            following is None or following.is_pause or following.starts_word,
            phoneme.is_pause,
            phoneme.clause == QUESTION,
            phoneme.clause == COMMA,
        )
        if phoneme.is_pause:
            _place(rows, start, place)
            start = place + 1
    _place(rows, start, len(spoken))
    return rows


def _place(rows: np.ndarray, start: int, end: int) -> None:
    length = end - start
    if length < 1:
        return
    place = np.arange(length)
    rows[start:end, 7] = place / length
    rows[start:end, 8] = np.minimum(place, FAR) / FAR
    rows[start:end, 9] = np.minimum(length - 1 - place, FAR) / FAR


def phoneme_of_frame(durations: np.ndarray) -> np.ndarray:
    """Return the index of the phoneme that each frame belongs to, int32 [frames]."""
    return np.repeat(np.arange(len(durations), dtype=np.int32), durations)


def positions(durations: np.ndarray) -> np.ndarray:
    """Return each frame's position in its phoneme and the phoneme's length.

    The result is float32 [frames, POSITION_CHANNELS].
    """
    owner = phoneme_of_frame(durations)
    length = durations[owner]
    since = np.arange(len(owner)) - (np.cumsum(durations) - durations)[owner]
    left = length - 1 - since
    columns = (
        (since + 0.5) / length,
        np.minimum(since, FAR) / FAR,
        np.minimum(left, FAR) / FAR,
        np.minimum(length, 2 * FAR) / FAR,
    )
    return np.stack(columns, axis=1).astype(np.float32)
