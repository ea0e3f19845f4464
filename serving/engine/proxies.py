"""Who asks by way of a proxy: what it says, where it is one that the settings trust."""

from collections.abc import Iterable
from typing import Any

from serving.engine.clients import Address
from serving.settings import Settings

HEADER = "x-forwarded-for"


class TrustedProxies:
    """The addresses whose `X-Forwarded-For` is believed."""

    def __init__(self, settings: Settings):
        from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

        self._trusted = list(settings.trusted_proxies)
        self._read = ProxyHeadersMiddleware(_nothing, self._trusted)

    def __contains__(self, address: object) -> bool:
        return bool(self._trusted) and str(address) in self._read.trusted_hosts

    async def client_of(self, address: Address, forwarded: Iterable[bytes]) -> Address:
        """The client of a request: the last address of the header that is no trusted proxy's.

        The connection's own where that is none. forwarded: every value of the header.
        """
        if not self._trusted or address is None:
            return address
        headers = [(HEADER.encode(), value) for value in forwarded]
        scope: dict[str, Any] = {"type": "http", "client": address, "headers": headers}
        await self._read(scope, None, None)  # type: ignore[arg-type]
        return scope["client"]


async def _nothing(*arguments: Any) -> None:
    """The application behind uvicorn's reader of the header, which changes the scope alone."""
