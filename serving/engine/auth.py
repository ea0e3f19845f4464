"""The token that a request must bear."""

import asyncio
import collections
import hmac
from collections.abc import Callable, Mapping

from serving.engine.clients import Client
from serving.engine.tokens import Token
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
      tokens: called for the tokens by name, at each request; where there is none all may come in.
    """

    def __init__(self, tokens: Callable[[], Mapping[str, Token]]):
        self._tokens = tokens
        self._mistakes: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._late: collections.Counter[str] = collections.Counter()

    @property
    def is_needed(self) -> bool:
        """Whether there is a token."""
        return bool(self._tokens())

    async def check(self, path: str, authorization: bytes, client: Client) -> str | None:
        """The name of the token that the request bears, compared in constant time; None: none.

        Raises Unauthorized for a request that must and does not, TooManyRequests where a client
        tries too many at once.
        """
        tokens = self._tokens()
        if not tokens:
            return None
        scheme, _, value = authorization.partition(b" ")
        is_bearer, given = scheme.lower() == b"bearer", value.strip()
        right = [name for name, t in tokens.items() if hmac.compare_digest(given, t.value.encode())]
        name = right[0] if right and is_bearer else None
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIXES):
            return name
        if not is_bearer:
            raise Unauthorized("A token must be given, as `Authorization: Bearer TOKEN`.")
        mistakes = self._mistakes.get(client.network, 0)
        if mistakes > 0 and self._late[client.network] >= ATTEMPTS_AT_ONCE:
            raise TooManyRequests("Too many wrong tokens at once.", WRONG_TOKEN_SECONDS)
        if name is not None:
            self._remember(client, -1)
            return name
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
