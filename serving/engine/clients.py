"""Who a request comes from, for the queue of a model."""

import contextvars
import dataclasses


@dataclasses.dataclass(frozen=True)
class Client:
    """An address, `network`: what counts as one client, empty where nobody asks from outside."""

    address: str = ""
    network: str = ""


NOBODY = Client()

_client: contextvars.ContextVar[Client] = contextvars.ContextVar("client", default=NOBODY)


def current_client() -> Client:
    """The client of the request being answered; NOBODY outside of one."""
    return _client.get()


def begin_client(address: tuple[str, int] | None) -> Client:
    """The client of the request that begins here."""
    host = address[0] if address else ""
    client = Client(host, host)
    _client.set(client)
    return client
