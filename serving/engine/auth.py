"""The bearer token of requests."""

import hmac
import os

from replicator.runs.errors import UserError
from serving.errors import Unauthorized
from serving.settings import TOKEN_VARIABLE, Settings

MIN_CHARACTERS = 16
OPEN_PATHS = ("/healthz", "/")
HEALTH_PREFIX = "/grpc.health.v1.Health/"  # probes have no token
OPEN_PREFIXES = ("/page/", HEALTH_PREFIX)


class TokenAuth:
    """A check of the token, `Authorization: Bearer TOKEN`; None accepts every request.

    The page's own files are open: they hold no data, and ask for the token themselves. Limiting
    attempts is left to the reverse proxy.
    """

    def __init__(self, token: str | None):
        self._token = None if token is None else token.encode()

    def check(self, path: str, authorization: bytes) -> None:
        """Raise Unauthorized without the right token, which is compared in constant time."""
        if self._token is None or path in OPEN_PATHS or path.startswith(OPEN_PREFIXES):
            return
        scheme, _, value = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized("A token must be given, as `Authorization: Bearer TOKEN`.")
        if not hmac.compare_digest(value.strip(), self._token):
            raise Unauthorized("The token is wrong.")


def read_token(settings: Settings) -> str | None:
    """Return the token of the settings or of the environment; None: no token is required.

    Raises:
      UserError: the file cannot be read, or does not hold a token.
    """
    path = settings.token_file
    if path is None:
        text, where = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
        if not text.strip():
            return None
    else:
        try:
            text, where = path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UserError(f"Cannot read the token file {path}: {reason}.") from error
    token = text.strip()
    if len(token) < MIN_CHARACTERS or not (token.isascii() and token.isprintable()):
        raise UserError(
            f"The token in {where} must be at least {MIN_CHARACTERS} printable ASCII "
            f"characters in one line, got {len(token)}."
        )
    return token
