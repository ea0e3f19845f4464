"""Command-line values that are numbers or npy files: conditions and entries."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onepass.foundation.arguments import number_of
from onepass.foundation.atomic_files import read_npy
from onepass.foundation.errors import UserError

SUFFIX = ".npy"


def condition_of(words: Sequence[str]) -> Any:
    """Return `--condition` (FILE.npy or number, or NAME= either) as `sample` takes it, or None."""
    return _by_name(words, "--condition", _value, "FILE.npy or NAME=NUMBER")


def entries_of(words: Sequence[str]) -> Any:
    """Return the values of `--entries`, NUMBER or NAME=NUMBER, as `export` takes them."""

    def whole(word: str) -> int:
        if not word.isdecimal():
            raise UserError(f"--entries must be NUMBER or NAME=NUMBER, got {word}.")
        return int(word)

    return _by_name(words, "--entries", whole, "NUMBER")


def _by_name(words: Sequence[str], option: str, read: Callable[[str], Any], what: str) -> Any:
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = ("", "", word) if Path(word).is_file() else word.partition("=")
        name, value = (name, value) if sign else ("", word)
        if name in found or (sign and not name) or ("" in (*found, name) and found):
            raise UserError(
                f"{option} must be NAME={what} for each of several conditions, once, got {word}."
            )
        found[name] = read(value)
    return found.get("", found) if found else None


def _value(word: str) -> Any:
    is_file = word.endswith(SUFFIX) or Path(word).is_file()
    number = None if is_file else number_of(word)
    return read_npy(Path(word)) if number is None else number
