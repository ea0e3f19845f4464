"""Chooses the client to serve next, which gives all clients fair shares of the server."""

import contextvars
import ipaddress
from collections.abc import Iterable

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
