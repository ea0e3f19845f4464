"""TLS around a connection of HTTP."""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.http.server import Connection

HANDSHAKE_SECONDS = 10


class TlsConnection(SSLProtocol):
    """TLS whose handshake has a place among the connections already.

    Given a context, asyncio would make a connection of it only after the handshake, and let any
    number wait there, a buffer of 256 KiB each.
    """

    max_size = 64 * 1024  # of that buffer

    def __init__(self, connection: "Connection", context: ssl.SSLContext):
        super().__init__(
            asyncio.get_running_loop(),
            connection,
            context,
            None,  # type: ignore[arg-type] # nobody waits for the handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
        )
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the place, then shakes hands."""
        self._connection.take_place(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Gives the place back, also where there were no hands to shake."""
        super().connection_lost(exc)
        self._connection.give_place()
