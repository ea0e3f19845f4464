"""Checks of the fields of a compressed file, made before the fields are used."""

from typing import Any, NoReturn

from onepass.foundation.errors import UserError

MOST = 2**32 - 1  # largest size that a field of the file can store


def raise_damaged(name: str, wanted: str) -> NoReturn:
    """Raise UserError for an invalid field of a compressed file."""
    raise UserError(f"The compressed file is damaged: `{name}` must be {wanted}.")


def whole(name: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """Return a field of a file that must be an integer from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise_damaged(name, f"a whole number from {least} to {most}")
    return value


def share(name: str, value: Any) -> float:
    """Return a field of a file that must be a number from 0 to 1."""
    if type(value) not in (int, float) or not 0.0 <= value <= 1.0:
        raise_damaged(name, "a number from 0 to 1")
    return float(value)


def check_list(name: str, value: Any, counts: tuple[int, ...]) -> list[Any]:
    """Return a field of a file that must be a list with one of the lengths in `counts`."""
    if not isinstance(value, list) or len(value) not in counts:
        raise_damaged(name, f"a list of {' or '.join(map(str, counts))}")
    return value
