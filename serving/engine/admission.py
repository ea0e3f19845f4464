"""Who may come in, and how much all requests together may hold, over HTTP and gRPC alike."""

import asyncio
import contextlib
import ctypes
import functools

from serving.engine.auth import TokenAuth
from serving.engine.clients import Address, Client, begin_client, current_client
from serving.engine.proxies import TrustedProxies
from serving.engine.quotas import Quota
from serving.engine.rate_limits import Buckets, RateLimiter, is_unlimited
from serving.engine.shared_limits import SharedLimit
from serving.engine.tokens import CurrentTokens
from serving.observability.metrics import Metrics
from serving.observability.refusals import Refusals
from serving.settings import Settings

BODIES_AT_ONCE = 16  # of the largest size: what all requests together may hold
MAX_CONNECTIONS = 1024  # of HTTP
FIRST_SECONDS = 0.1  # that a connection is left to say something, however many come
FREED_SECONDS = 1.0  # after a call, in which its memory is freed
MAX_CALLS = 1024  # of gRPC at the same time, the silent ones among them
SILENT_SECONDS = 10.0  # that a client may be silent where it has something to send


class Admission:
    """The token, the rate, and what is shared by all requests.

    bodies: bytes of requests in flight. calls: of gRPC. connections: of HTTP. proxies: that are
    believed who asks.
    """

    def __init__(self, settings: Settings, metrics: Metrics):
        self._tokens = CurrentTokens(settings)
        self._auth = TokenAuth(self._tokens)
        self._quota_of = functools.partial(Quota, Buckets(), metrics)
        self._rate_limiter = RateLimiter(settings.requests_per_minute_per_client)
        self.proxies = TrustedProxies(settings)
        self.refusals = Refusals(metrics)
        limit = functools.partial(
            SharedLimit, has_reserve=self._auth.is_needed, refusals=self.refusals
        )
        total_bytes = BODIES_AT_ONCE * settings.max_body_bytes
        self.bodies = limit("bytes of requests", total_bytes, on_fall=_return_memory_soon)
        self.calls = limit("calls", MAX_CALLS)
        self.connections = limit("connections", MAX_CONNECTIONS, FIRST_SECONDS)

    async def admit(self, path: str, authorization: bytes, address: Address) -> Client:
        """The client of a request that may come in; Unauthorized or TooManyRequests if not."""
        client = begin_client(address)
        self._rate_limiter.check(path, address)
        name = await self._auth.check(path, authorization, client)
        token = None if name is None else self._tokens().get(name)
        quota = self._quota_of(name, token) if name is not None and token else None
        client = begin_client(address, name, quota)
        _count_request(path, client)
        return client

    def count_another(self, path: str, address: Address) -> None:
        """Counts a further message of a request; TooManyRequests where there may be none."""
        self._rate_limiter.check(path, address)
        _count_request(path, current_client())


def _count_request(path: str, client: Client) -> None:
    if not is_unlimited(path):
        client.check_quota("requests_per_minute", 1)
        client.use_quota("requests_per_minute", 1)


def _return_memory_soon() -> None:
    """Gives memory back to the system, once gRPC has freed it: glibc would keep what many threads
    freed in small pieces."""
    with contextlib.suppress(OSError, AttributeError, RuntimeError):  # no glibc, or no loop
        trim, loop = ctypes.CDLL(None).malloc_trim, asyncio.get_running_loop()
        loop.call_later(FREED_SECONDS, loop.run_in_executor, None, trim, 0)
