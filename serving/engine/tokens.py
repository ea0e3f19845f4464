"""The tokens that requests may bear, as their file or folder has them now."""

import logging
import os
import time
from collections.abc import Mapping

from replicator.runs.errors import UserError
from serving.observability.logs import event
from serving.settings import Settings

LOG = logging.getLogger(__name__)
LOOK_SECONDS = 1.0  # between two looks at the file


class CurrentTokens:
    """Called, gives the tokens by their names; what cannot be used leaves those before.

    Args:
      settings: `token_file`; without it the tokens are always those of the start.

    Raises UserError at the start for tokens that cannot be used.
    """

    def __init__(self, settings: Settings):
        self._settings, self._tokens = settings, settings.tokens()
        self._seen, self._look_at = self._stamp(), 0.0

    def __call__(self) -> Mapping[str, str]:
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
            self._tokens = self._settings.tokens()
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
            found = [os.stat(place) for place in (path, *inside)]
        except OSError:
            return ()
        return tuple(n for s in found for n in (s.st_mtime_ns, s.st_size, s.st_ino))
