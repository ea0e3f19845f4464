"""Fair shares of the server: whose turn it is, the order of a client's requests, and permits."""

import collections
import contextlib
import contextvars
import dataclasses
import ipaddress
import os
import threading
import time
from collections.abc import Iterable, Iterator

IPV6_NETWORK_BITS = 64  # prefix length of one customer's network
MAX_ACCOUNTS = 4096

_client: contextvars.ContextVar[str] = contextvars.ContextVar("client", default="")


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


HEAD_START_SECONDS = 1.0  # of work that has not held a permit, before other work of its client


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
    permits before comes as much later, at most HEAD_START_SECONDS: short work first. Unlike with
    `threading.Semaphore`, a thread that releases a permit and immediately requests a new one queues
    behind the client's waiting threads. If no permit is released for `patience_seconds`, the
    threads that hold them are assumed to hang, and a waiting thread continues without a permit.
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
            self._give_back(client, seconds, was_granted)

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

    def _give_back(self, client: str, seconds: float, was_granted: bool) -> None:
        with self._changed:
            self._free += 1
            self._given_back += was_granted
            self._shares.charge(client, seconds)
            self._changed.notify_all()


PROCESSORS = Permits(os.cpu_count() or 1)  # for all models together
