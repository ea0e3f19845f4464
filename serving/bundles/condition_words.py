"""Read conditions from words of the command line: their values, or their numbers of entries."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replicator.runs.atomic_files import read_npy
from replicator.runs.errors import UserError

SUFFIX = ".npy"


def condition_of(words: Sequence[str]) -> Any:
    """Return conditions as `Autoregressive.sample` takes them.

    Args:
      words: one word for the only condition, FILE.npy or a number; for several conditions a word
        for each, NAME=FILE.npy or NAME=NUMBER.

    Returns:
      None without a word; an array or a number, or a dict of them by name.

    Raises:
      UserError: a word has another form, a name is given twice, or a file cannot be read.
    """
    return _by_name(words, "--condition", _value, "FILE.npy or NAME=NUMBER")


def entries_of(words: Sequence[str]) -> Any:
    """Return numbers of entries as `export` takes them, from NUMBER or from NAME=NUMBER.

    Raises:
      UserError: a word has another form, or a name is given twice.
    """

    def whole(word: str) -> int:
        if not word.isdecimal():
            raise UserError(f"--entries must be NUMBER or NAME=NUMBER, got {word}.")
        return int(word)

    return _by_name(words, "--entries", whole, "NUMBER")


def _by_name(words: Sequence[str], option: str, read: Callable[[str], Any], what: str) -> Any:
    """Return the values of the words, by name if they are of the form NAME=VALUE."""
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
    """Return a number, or the array of a file."""
    if not word.endswith(SUFFIX) and not Path(word).is_file():
        for kind in (int, float):
            try:
                return kind(word)
            except ValueError:
                continue
    return read_npy(Path(word))
