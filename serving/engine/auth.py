"""The token that a request must bear."""

import asyncio
import collections
import hmac

from serving.engine.clients import Client
from serving.errors import TooManyRequests, Unauthorized

OPEN_PATHS = ("/healthz", "/")
HEALTH_PREFIX = "/grpc.health.v1.Health/"  # a probe has no token
OPEN_PREFIXES = ("/page/", HEALTH_PREFIX)
WRONG_TOKEN_SECONDS = 1.0  # that the answer to a wrong token takes, after the free ones
FREE_MISTAKES = 10  # of a client, until one of its tokens is right
ATTEMPTS_AT_ONCE = 8  # of a client that only had wrong ones
MAX_CLIENTS = 10_000


class TokenAuth:
    """Lets requests in that bear the token, as `Authorization: Bearer TOKEN`.

    The page's own files are open: they hold nothing, and ask for the token themselves. Wrong tokens
    are answered late, and only a few of a client at once; a right one never waits for those.

    Args:
      token: None lets everybody in.
    """

    def __init__(self, token: str | None):
        self._token = None if token is None else token.encode()
        self._mistakes: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._late: collections.Counter[str] = collections.Counter()

    @property
    def is_needed(self) -> bool:
        """Whether there is a token."""
        return self._token is not None

    async def check(self, path: str, authorization: bytes, client: Client) -> bool:
        """Whether the request bears the token, compared in constant time.

        Raises Unauthorized for a request that must and does not, TooManyRequests where a client
        tries too many at once.
        """
        if self._token is None:
            return False
        scheme, _, value = authorization.partition(b" ")
        is_right = hmac.compare_digest(value.strip(), self._token) and scheme.lower() == b"bearer"
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIXES):
            return is_right
        if scheme.lower() != b"bearer":
            raise Unauthorized("A token must be given, as `Authorization: Bearer TOKEN`.")
        mistakes = self._mistakes.get(client.network, 0)
        if mistakes > 0 and self._late[client.network] >= ATTEMPTS_AT_ONCE:
            raise TooManyRequests("Too many wrong tokens at once.", WRONG_TOKEN_SECONDS)
        if is_right:
            self._remember(client, -1)
            return True
        await self._answer_late(client, mistakes)
        raise Unauthorized("The token is not the right one.")

    def _remember(self, client: Client, mistakes: int) -> None:
        """Notes how many were wrong; -1: one was right, and its client waits for no others."""
        self._mistakes[client.network] = mistakes
        self._mistakes.move_to_end(client.network)
        if len(self._mistakes) > MAX_CLIENTS:
            self._mistakes.popitem(last=False)

    async def _answer_late(self, client: Client, mistakes: int) -> None:
        if mistakes >= 0:
            self._remember(client, mistakes + 1)
        if 0 <= mistakes < FREE_MISTAKES or self._late[client.network] >= ATTEMPTS_AT_ONCE:
            return
        self._late[client.network] += 1
        try:
            await asyncio.sleep(WRONG_TOKEN_SECONDS)
        finally:
            self._late[client.network] -= 1
            if not self._late[client.network]:
                del self._late[client.network]
