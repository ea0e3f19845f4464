"""The tokens that requests may bear, as their file or folder has them now."""

import dataclasses
import logging
import math
import os
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

from replicator.runs.errors import UserError
from serving.bundles.plain_files import stamp_of
from serving.observability.logs import event
from serving.settings import TOKEN_VARIABLE, Settings

LOG = logging.getLogger(__name__)
LOOK_SECONDS = 1.0  # between two looks at the file
MIN_CHARACTERS = 16


@dataclasses.dataclass(frozen=True)
class Token:
    """A token, and how much whoever bears it may ask for; infinite where nothing is said."""

    value: str
    requests_per_minute: float = math.inf
    sound_seconds_per_day: float = math.inf
    images_per_day: float = math.inf


LIMITS = tuple(field.name for field in dataclasses.fields(Token))[1:]


def read_tokens(settings: Settings) -> dict[str, Token]:
    """The tokens by name, one of which every request must bear; empty: none is asked for.

    The only one has the name "". UserError if they cannot be used.
    """
    path = settings.token_file
    if path is None:
        text = os.environ.get(TOKEN_VARIABLE, "")
        return {"": _token(text, TOKEN_VARIABLE)} if text.strip() else {}
    if not path.is_dir():
        return {"": _token(_read(path), str(path))}
    files = sorted(file for file in path.iterdir() if file.name[0] != "." and file.is_file())
    if not files:
        raise UserError(f"The folder {path} holds no token.")
    return {file.name: _token(_read(file), str(file)) for file in files}


class CurrentTokens:
    """Called, gives the tokens by their names; what cannot be used leaves those before.

    Args:
      settings: `token_file`; without it the tokens are always those of the start.

    Raises UserError at the start for tokens that cannot be used.
    """

    def __init__(self, settings: Settings):
        self._settings, self._tokens = settings, read_tokens(settings)
        self._seen, self._look_at = self._stamp(), 0.0

    def __call__(self) -> Mapping[str, Token]:
        """Every token by its name, "" of the only one; empty where none is asked for."""
        now = time.monotonic()
        if self._settings.token_file is not None and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            if (stamp := self._stamp()) != self._seen:
                self._seen = stamp
                self._read()
        return self._tokens

    def _read(self) -> None:
        try:
            self._tokens = read_tokens(self._settings)
        except UserError as error:
            LOG.error("the tokens stay as they were: %s", error)
        else:
            event(LOG, "the tokens were read again", names=", ".join(self._tokens))

    def _stamp(self) -> tuple[int, ...]:
        """Changes with the file, or with any file of the folder."""
        path = self._settings.token_file
        if path is None:
            return ()
        try:
            inside = sorted(path.iterdir()) if path.is_dir() else []
        except OSError:
            return ()
        return stamp_of([path, *inside])


def _token(text: str, where: str) -> Token:
    """What a file says: the token in its first line, limits below as `NAME = NUMBER`."""
    value, _, rest = text.strip().partition("\n")
    value = value.strip()
    if len(value) < MIN_CHARACTERS or not (value.isascii() and value.isprintable()):
        raise UserError(
            f"The token in {where} must be at least {MIN_CHARACTERS} printable ASCII "
            f"characters, got {len(value)}."
        )
    try:
        limits = tomllib.loads(rest)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"The lines after the token in {where} must be NAME = NUMBER.") from error
    for name, limit in limits.items():
        if name not in LIMITS:
            raise UserError(f"There is no limit `{name}` ({where}); there are {', '.join(LIMITS)}.")
        low = int(name == "requests_per_minute")  # less than one would be none at all
        if type(limit) not in (int, float) or not limit >= low:
            raise UserError(f"`{name}` in {where} must be at least {low}, got {limit!r}.")
    return Token(value, **limits)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"Cannot read the token file {path}: {reason}.") from error
