"""Encoding of captions as character codes."""

import string
import unicodedata

import numpy as np

from onepass.foundation.rules import UserError

MAX_CAPTION_CHARACTERS = 200
ALPHABET = " " + string.ascii_lowercase + string.digits + string.punctuation
PADDING = 0
CODES = {character: code for code, character in enumerate(ALPHABET, start=1)}
UNKNOWN = len(ALPHABET) + 1
CLOSING = len(ALPHABET) + 2
NUM_CODES = len(ALPHABET) + 3


def encode_caption(text: str) -> np.ndarray:
    """Encode a caption as int32 [201]: its characters, the closing code, and zeros as padding.

    It is in lower case and NFKC, with single inner spaces; all characters outside the alphabet
    (a-z, 0-9, ASCII punctuation and space) share one code.
    """
    folded = text
    if len(text) <= MAX_CAPTION_CHARACTERS:  # huge texts are rejected before processing them
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
        folded = " ".join(folded.split())
    if len(folded) > MAX_CAPTION_CHARACTERS:
        raise UserError(
            f"A caption may have {MAX_CAPTION_CHARACTERS} characters, got {len(folded):,}."
        )
    codes = np.full(MAX_CAPTION_CHARACTERS + 1, PADDING, np.int32)
    codes[: len(folded)] = [CODES.get(character, UNKNOWN) for character in folded]
    codes[len(folded)] = CLOSING
    return codes
