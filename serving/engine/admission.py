"""Who may come in, and how much all requests together may hold, over HTTP and gRPC alike."""

from typing import TYPE_CHECKING

from serving.engine.auth import TokenAuth
from serving.engine.clients import Address, Client, begin_client
from serving.engine.rate_limits import RateLimiter
from serving.engine.shared_limits import SharedLimit
from serving.observability.refusals import Refusals
from serving.settings import Settings

if TYPE_CHECKING:
    from serving.observability.metrics import Metrics

BODIES_AT_ONCE = 16  # of the largest size: what all requests together may hold
MAX_CONNECTIONS = 1024  # of HTTP
FIRST_SECONDS = 0.1  # that a connection is left to say something, however many come
MAX_CALLS = 1024  # of gRPC at the same time, the silent ones among them
SILENT_SECONDS = 10.0  # that a client may be silent where it has something to send


class Admission:
    """The token, the rate, and what is shared by all requests.

    bodies: bytes of requests in flight. calls: of gRPC. connections: of HTTP.
    """

    def __init__(self, settings: Settings, metrics: "Metrics | None" = None):
        self._auth = TokenAuth(settings.token())
        self.rate_limiter = RateLimiter(settings.requests_per_minute_per_client)
        self.refusals = Refusals(metrics)
        self.bodies = self._limit("bytes of requests", BODIES_AT_ONCE * settings.max_body_bytes)
        self.calls = self._limit("calls", MAX_CALLS)
        self.connections = self._limit("connections", MAX_CONNECTIONS, FIRST_SECONDS)

    def _limit(self, what: str, total: int, patience_seconds: float = 0.0) -> SharedLimit:
        needs_token = self._auth.is_needed
        return SharedLimit(what, total, patience_seconds, needs_token, self.refusals)

    async def admit(self, path: str, authorization: bytes, address: Address) -> Client:
        """The client of a request that may come in; Unauthorized or TooManyRequests if not."""
        client = begin_client(address)
        self.rate_limiter.check(path, address)
        has_token = await self._auth.check(path, authorization, client)
        return begin_client(address, has_token)
