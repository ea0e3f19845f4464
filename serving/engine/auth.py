"""Bearer tokens of requests."""

import hmac
import os
from collections.abc import Sequence

from onepass.bundles.errors import Unauthorized
from onepass.foundation.errors import UserError
from onepass.foundation.server_address import TOKEN_VARIABLE
from serving.settings import Settings

MIN_CHARACTERS = 16
OPEN_PATHS = ("/healthz", "/")
HEALTH_PREFIX = "/grpc.health.v1.Health/"  # probes send no token
OPEN_PREFIXES = ("/page/", HEALTH_PREFIX)


class TokenAuth:
    """Checks tokens, `Authorization: Bearer TOKEN`; if no tokens are set, every request passes.

    The web page's files, `/healthz` and gRPC's health checks need no token: they contain no data,
    and the page asks the user for the token. Limiting the number of attempts is left to the reverse
    proxy.
    """

    def __init__(self, tokens: Sequence[str]):
        self._tokens = [token.encode() for token in tokens]

    def check(self, path: str, authorization: bytes) -> str | None:
        """Return the name of the request's token; None if only one token is set, or none is needed.

        Tokens are compared in constant time.
        """
        if not self._tokens or path in OPEN_PATHS or path.startswith(OPEN_PREFIXES):
            return None
        scheme, _, value = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized("A token must be given, as `Authorization: Bearer TOKEN`.")
        equal = [hmac.compare_digest(value.strip(), token) for token in self._tokens]
        if not any(equal):
            raise Unauthorized("The token is wrong.")
        return f"token {equal.index(True) + 1}" if len(equal) > 1 else None


def read_tokens(settings: Settings) -> tuple[str, ...]:
    """Return the tokens in the token file or the environment variable; () if none are set."""
    path = settings.token_file
    if path is None:
        text, where = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
        if not text.strip():
            return ()
    else:
        try:
            text, where = path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UserError(f"Cannot read the token file {path}: {reason}.") from error
    tokens = tuple(line.strip() for line in text.split("\n") if line.strip()) or ("",)
    for token in tokens:
        if len(token) < MIN_CHARACTERS or not (token.isascii() and token.isprintable()):
            raise UserError(
                f"The token in {where} must be at least {MIN_CHARACTERS} printable ASCII "
                f"characters in one line, got {len(token)}."
            )
    return tokens
