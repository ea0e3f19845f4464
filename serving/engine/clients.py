"""Clients: their tokens, their fair shares, and threads in which their work takes turns."""

import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import functools
import hmac
import ipaddress
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from onepass.bundles.errors import Cancelled, DeadlineExceeded, Unauthorized
from onepass.foundation.model_folders import TOKEN_VARIABLE
from onepass.foundation.rules import UserError
from serving.settings import Settings

MIN_CHARACTERS = 16
OPEN_PATHS = ("/healthz", "/")
HEALTH_PREFIX = "/grpc.health.v1.Health/"  # probes send no token
OPEN_PREFIXES = ("/page/", HEALTH_PREFIX)
IPV6_NETWORK_BITS = 64  # prefix length of one customer's network
MAX_ACCOUNTS = 4096
_client: contextvars.ContextVar[str] = contextvars.ContextVar("client", default="")
HEAD_START_SECONDS = 1.0  # of work that has not held a permit, before other work of its client
MAX_RUNNING = 8  # each may need 100 MB for the frames of the longest part of a text
MAX_RUNNING_OF_CLIENT = 4
SHORT_PART = 1 / 8  # a job with less of the work of each running job of its client is short


class TokenAuth:
    """Checks tokens, `Authorization: Bearer TOKEN`; if no tokens are set, every request passes.

    The web page's files, `/healthz` and gRPC's health checks need no token: they contain no data,
    and the page asks for it. Limiting the number of attempts is left to the reverse proxy.
    """

    def __init__(self, tokens: Sequence[str]):
        self._tokens = [token.encode() for token in tokens]

    def check(self, path: str, authorization: bytes) -> str | None:
        """Return the name of the token, compared in constant time; None if at most one is set."""
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


def current_client() -> str:
    """Return the name of the current request's client; "" outside a request."""
    return _client.get()


def begin_client(address: str, token_name: str | None = None) -> str:
    """Set and return the name of a new request's client: the token's or else the address's."""
    client = client_of_address(address) if token_name is None else token_name
    _client.set(client)
    return client


def client_of_address(address: str) -> str:
    """Return an IPv4 address or an IPv6 network as a client's name, and other text unchanged."""
    try:
        parsed = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))


class ClientSlots:
    """A limited number of slots, shared among clients.

    A client may take its first slot if any is free, and further slots while it has fewer slots than
    are free. A single client can therefore take half of the slots; the rest is left for others.
    """

    def __init__(self, most: int):
        self._most = most
        self._taken: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """Number of slots in use."""
        return sum(self._taken.values())

    def taken_by(self, client: str) -> int:
        """Return the number of slots that a client has."""
        return self._taken.get(client, 0)

    def has_one_for(self, client: str) -> bool:
        """Return whether a client may take a slot."""
        own, free = self.taken_by(client), self._most - self.taken
        return free > 0 and (not own or own < free)

    def take(self, client: str) -> None:
        """Take a slot for a client."""
        self._taken[client] = self.taken_by(client) + 1

    def leave(self, client: str) -> None:
        """Free one of a client's slots."""
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]


class FairShares:
    """An account of each client's use; the client with the lowest account is next.

    This is start-time fair queueing: an account is never below that of the client being served, so
    no client can save up turns, and use while no other client waits costs nothing.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, float] = {}
        self._now = 0.0

    def account(self, client: str) -> float:
        """Return the account of a client."""
        return max(self._accounts.get(client, 0.0), self._now)

    def next_of(self, clients: Iterable[str]) -> str:
        """Return the client with the lowest account; in a tie, the first in `clients`."""
        return min(clients, key=self.account)

    def serve(self, client: str) -> None:
        """Record that a client is being served, which raises lower accounts to its account."""
        self._now = self.account(client)
        if len(self._accounts) > MAX_ACCOUNTS:
            above = {name: used for name, used in self._accounts.items() if used > self._now}
            self._accounts = above

    def charge(self, client: str, amount: float) -> None:
        """Add to the account of a client; a negative amount corrects an excessive charge."""
        self._accounts[client] = self.account(client) + amount


class RequestOrder:
    """Ranks of the requests that wait; of a client's requests, the one of the lowest rank is next.

    A rank is when a request would end if all waiting requests of its client advanced at the same
    pace: the fair sojourn protocol (Friedman and Henderson 2003, "Fairness and efficiency in web
    server protocols"). A short request therefore comes before the long ones that wait, while all
    work that is done raises the ranks of requests that arrive later, so that a long one is next in
    the end. Clients do not affect each other's ranks.
    """

    def __init__(self) -> None:
        self._waiting: collections.Counter[str] = collections.Counter()
        self._progress: dict[str, float] = {}  # work done for each of a client's requests

    def join(self, client: str, work: float) -> float:
        """Return the rank of a new request, which needs `work`, in a unit common to all."""
        self._waiting[client] += 1
        return self._progress.setdefault(client, 0.0) + work

    def advance(self, client: str, work: float) -> None:
        """Record that work is being done for a request of a client that waits."""
        self._progress[client] += work / self._waiting[client]

    def leave(self, client: str) -> None:
        """Record that a request of a client waits no longer."""
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client], self._progress[client]


@dataclasses.dataclass
class Use:
    """The seconds for which the permits of one piece of work after the other were held."""

    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class _Ticket:
    client: str
    rank: float


class Permits:
    """A limited number of permits; the client that has held permits for the least time is next.

    A client's permits are granted in the order in which they are asked for, but work that has held
    permits before comes as much later, at most HEAD_START_SECONDS: short work first. A thread that
    immediately requests a new permit queues behind its client's waiting threads. If none is
    released for `patience_seconds`, the holders are assumed to hang, and a waiting thread continues
    without.
    """

    def __init__(self, number: int, patience_seconds: float = 10.0):
        self._free, self._patience_seconds = number, patience_seconds
        self._changed = threading.Condition()
        self._waiting: dict[_Ticket, None] = {}
        self._shares = FairShares()
        self._given_back = 0

    @contextlib.contextmanager
    def permit(self, client: str = "", use: Use | None = None) -> Iterator[None]:
        """Hold a permit inside the block, waited for until the patience ends; update `use`."""
        use = use or Use()
        was_granted = self._take(client, use)
        start = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - start
            use.seconds += seconds
            with self._changed:
                self._free += 1
                self._given_back += was_granted
                self._shares.charge(client, seconds)
                self._changed.notify_all()

    def _take(self, client: str, use: Use) -> bool:
        ticket = _Ticket(client, time.monotonic() + min(use.seconds, HEAD_START_SECONDS))
        with self._changed:
            self._waiting[ticket] = None
            granted = False
            while not granted:
                before = self._given_back
                granted = self._changed.wait_for(
                    lambda: self._free > 0 and self._first() is ticket, self._patience_seconds
                )
                if before == self._given_back:
                    break
            del self._waiting[ticket]
            self._free -= 1
            self._shares.serve(client)
            self._changed.notify_all()
        return granted

    def _first(self) -> _Ticket:
        client = self._shares.next_of(ticket.client for ticket in self._waiting)
        own = (ticket for ticket in self._waiting if ticket.client == client)
        return min(own, key=lambda ticket: ticket.rank)


PROCESSORS = Permits(os.cpu_count() or 1)  # for all models together


@dataclasses.dataclass(frozen=True)
class _Job:
    client: str
    run: Callable[[], Any]
    size: float
    rank: float


class FairThreads:
    """Threads for jobs, at most `most` at once and `most_of_client` per client.

    The next job is one of the client with the fewest running jobs, among several of the one that
    has been served least: its job of the lowest rank (`RequestOrder`). A client whose jobs take all
    of its threads may have one more for a short job. The threads are daemons, so a job that hangs
    does not keep the process alive.
    """

    def __init__(self, most: int = MAX_RUNNING, most_of_client: int = MAX_RUNNING_OF_CLIENT):
        self._most, self._most_of_client = most, most_of_client
        self._lock = threading.Lock()
        self._waiting: dict[Future, _Job] = {}
        self._running: dict[str, list[float]] = {}  # sizes of the jobs
        self._shares, self._order = FairShares(), RequestOrder()

    def submit(self, client: str, job: Callable[[], Any], size: float = 1.0) -> Future:
        """Return the future of a job of this estimated `size`; cancelling removes a waiting job."""
        future: Future = Future()
        with self._lock:
            self._waiting[future] = _Job(client, job, size, self._order.join(client, size))
            self._start_next()
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: Future) -> None:
        with self._lock:
            if (job := self._waiting.pop(future, None)) is not None:
                self._order.leave(job.client)

    def _start_next(self) -> None:
        if sum(map(len, self._running.values())) >= self._most:
            return
        able: dict[str, Future] = {}
        for future, job in self._waiting.items():
            if self._has_thread_for(job):
                first = self._waiting[able.setdefault(job.client, future)]
                able[job.client] = future if job.rank < first.rank else able[job.client]
        if not able:
            return
        used = self._shares.account
        client = min(able, key=lambda name: (len(self._running.get(name, ())), used(name)))
        job = self._waiting.pop(able[client])
        self._running.setdefault(client, []).append(job.size)
        self._order.advance(client, job.size)
        self._order.leave(client)
        self._shares.serve(client)
        self._shares.charge(client, 1.0)
        run = functools.partial(self._run, job, able[client])
        threading.Thread(target=run, name="preparing", daemon=True).start()

    def _has_thread_for(self, job: _Job) -> bool:
        running = self._running.get(job.client, [])
        if len(running) == self._most_of_client:
            return job.size < SHORT_PART * min(running)
        return len(running) < self._most_of_client

    def _run(self, job: _Job, future: Future) -> None:
        run_to_future(future, job.run)
        with self._lock:
            self._running[job.client].remove(job.size)
            if not self._running[job.client]:
                del self._running[job.client]
            self._start_next()


THREADS = FairThreads()


def run_to_future(future: Future, work: Callable[[], Any]) -> None:
    """Give a future, unless it was cancelled, the result or the error of work."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)


async def run_in_turn(
    seconds: float,
    function: Callable[..., Any],
    *arguments: Any,
    in_pieces: bool = False,
    size: float = 1.0,
) -> Any:
    """Call a function in a thread, taking turns with the work of other clients.

    If the awaiting task is cancelled or the time limit `seconds`, which includes waiting, is over,
    a function that has not been called is never called, and one that works in pieces ends after the
    current piece: `in_pieces`, it takes the keyword `pause`, a function that it calls between them.
    Of a client's calls those of less estimated work come first, its `size`: for a text its
    characters at speed 1.
    """
    client, use = current_client(), Use()
    stopped, piece = threading.Event(), contextlib.ExitStack()  # a piece holds a permit

    def pause() -> None:
        piece.close()
        if not stopped.is_set():
            piece.enter_context(PROCESSORS.permit(client, use))
        if stopped.is_set():
            raise Cancelled("The work was stopped.")

    def job() -> Any:
        with piece:
            pause()
            return function(*arguments, **({"pause": pause} if in_pieces else {}))

    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(THREADS.submit(client, job, size))
    except TimeoutError as error:
        raise DeadlineExceeded("The input took too long to process.") from error
    finally:
        stopped.set()
