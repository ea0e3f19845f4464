"""Checks of the fields of a compressed file, before its reader uses them."""

from typing import Any, NoReturn

from foundation.errors import UserError

MOST = 2**32 - 1  # a size in a file


def damaged(name: str, wanted: str) -> NoReturn:
    """Raise UserError for a field of a compressed file.

    Args:
      name: the field's name.
      wanted: what the field must be, for the message.
    """
    raise UserError(f"The compressed file is damaged: `{name}` must be {wanted}.")


def whole(name: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """Return a field of a file that must be a whole number.

    Args:
      name: the field's name.
      value: the field's value, of any type.
      least: the least number that is allowed.
      most: the largest number that is allowed.

    Raises:
      UserError: the value is not a whole number, or is out of its range.
    """
    if type(value) is not int or not least <= value <= most:
        damaged(name, f"a whole number from {least} to {most}")
    return value


def share(name: str, value: Any) -> float:
    """Return a field of a file that must be a number from 0 to 1.

    Raises:
      UserError: the value is not a number from 0 to 1.
    """
    if type(value) not in (int, float) or not 0.0 <= value <= 1.0:
        damaged(name, "a number from 0 to 1")
    return float(value)


def listed(name: str, value: Any, counts: tuple[int, ...]) -> list[Any]:
    """Return a field of a file that must be a list of one of these lengths.

    Raises:
      UserError: the value is not a list, or has a different number of entries.
    """
    if not isinstance(value, list) or len(value) not in counts:
        damaged(name, f"a list of {' or '.join(map(str, counts))}")
    return value
