"""The one rule for names of models and versions, which are the folders NAME/VERSION of bundles.

Names appear unchanged in URLs, metrics and logs, so they need no quoting anywhere.
"""

import re
from pathlib import Path

from onepass.bundles.errors import shorten_text
from onepass.foundation.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"0|[1-9][0-9]{0,17}")  # each number is written in one way
NAME_RULE = (
    "must be at most 128 letters from a to z or A to Z, digits and `._-`, not begun by `._-`"
)
VERSION_RULE = "must be a number of at most 18 digits from 0 to 9, not begun by 0"


def is_version(word: str) -> bool:
    """Return whether a word is a version."""
    return VERSION.fullmatch(word) is not None


def name_problem(word: str) -> str:
    """Return the rule that the name of a model breaks, and the name; "" if it breaks none."""
    return "" if NAME.fullmatch(word) else f"{NAME_RULE}, got `{shorten_text(word)}`"


def version_problem(word: str) -> str:
    """Return the rule that a version breaks, and the version; "" if it breaks none."""
    return "" if is_version(word) else f"{VERSION_RULE}, got `{shorten_text(word)}`"


def folder_problem(path: Path) -> str:
    """Return why a path does not end in NAME/VERSION, in one clause; "" if it does."""
    path = path.absolute()
    if problem := version_problem(path.name):
        return f"a version {problem}"
    problem = name_problem(path.parent.name)
    return problem and f"a name {problem}"


def check_folder(path: Path, what: str) -> None:
    """Raise UserError, naming the path `what`, unless it ends in NAME/VERSION."""
    if problem := folder_problem(path):
        raise UserError(f"{what} must end in NAME/VERSION, such as voice/1, got {path}: {problem}.")
