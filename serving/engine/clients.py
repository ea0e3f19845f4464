"""Who a request comes from: what limits are shared by, and what the log names."""

import contextvars
import dataclasses
import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.engine.quotas import Quota

Address = tuple[str, int] | None


@dataclasses.dataclass(frozen=True)
class Client:
    """An address, and whether the right token came from it.

    network: what counts as one client: the address, of IPv6 the network of 64 bits, which is one
    customer's. It is empty where nobody asks from outside. token: its name, where it has one: then
    whoever bears it is one client, wherever from. quota: what it may use; None: as much as it will.
    """

    address: str = ""
    network: str = ""
    has_token: bool = False
    token: str = ""
    quota: "Quota | None" = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, bool]:
        """What limits are shared by."""
        return f"token {self.token}" if self.token else self.network, self.has_token

    def check_quota(self, limit: str, amount: float) -> None:
        """TooManyRequests or TooLarge where it may not use so much, see `Quota.check`."""
        if self.quota is not None:
            self.quota.check(limit, amount)

    def use_quota(self, limit: str, amount: float) -> None:
        """Counts what it has used, see `Quota.use`."""
        if self.quota is not None:
            self.quota.use(limit, amount)


NOBODY = Client()

_client: contextvars.ContextVar[Client] = contextvars.ContextVar("client", default=NOBODY)


def current_client() -> Client:
    """The client of the request being answered; NOBODY outside of one."""
    return _client.get()


def begin_client(
    address: Address, token: str | None = None, quota: "Quota | None" = None
) -> Client:
    """The client of the request that begins here; token: the name of the one that it bears."""
    host = address[0] if address else ""
    client = Client(host, network_of(host), token is not None, token or "", quota)
    _client.set(client)
    return client


def network_of(address: str) -> str:
    """What counts as one client; see `Client`."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
