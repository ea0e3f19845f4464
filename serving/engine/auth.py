"""The token that a request must bear."""

import hmac

from serving.errors import Unauthorized

OPEN_PATHS = ("/healthz", "/")
OPEN_FOLDER = "/page/"


class TokenAuth:
    """Lets requests in that bear the token, as `Authorization: Bearer TOKEN`.

    The page's own files are open: they hold nothing, and ask for the token themselves.

    Args:
      token: None lets everybody in.
    """

    def __init__(self, token: str | None):
        self._token = None if token is None else token.encode()

    def check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Unauthorized without the token; compared in constant time."""
        if self._token is None or path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return
        scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized("A token must be given, as `Authorization: Bearer TOKEN`.")
        if not hmac.compare_digest(value.strip(), self._token):
            raise Unauthorized("The token is not the right one.")
