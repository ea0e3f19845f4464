"""Checks of the host that a request is for and of the page that sent it.

A page of another site can make a browser call a server on the same machine, by a host name that
resolves to it (DNS rebinding) or by a form. `Host` reveals the first, `Origin` the second.
"""

import ipaddress
import re

from serving.errors import Forbidden, InvalidInput, ServingError
from serving.settings import Settings

HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Misdirected(ServingError):  # noqa: N818 - named as the other errors
    """A request for a host that is not served."""

    http_status, grpc_status, code = 421, "PERMISSION_DENIED", "misdirected"


class AllowedHosts:
    """The hosts that are served: the address, localhost, and those in the settings.

    A server that other machines can reach also accepts any numeric address: a page of another site
    can only use a name. Pages of the hosts in the settings, at the port of their scheme, count as
    the server's own, whatever host a proxy in front passes on.
    """

    def __init__(self, settings: Settings):
        named = ("localhost", "127.0.0.1", "::1", settings.host, *settings.allowed_hosts)
        self._names = {name.strip("[]").lower() for name in named}
        self._own_sites = {name.lower() for name in settings.allowed_hosts}
        self._any_address = not settings.is_loopback

    def check(self, method: str, headers: dict[bytes, bytes]) -> None:
        """Raise Misdirected for another host, Forbidden for a request from another site's page."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        match = HOST.fullmatch(host)
        if match is None:
            raise InvalidInput("`Host` must name a host.")
        name = match["name"].strip("[]")
        if name not in self._names and not (self._any_address and _is_address(name)):
            raise Misdirected("This host is not served; see `allowed_hosts`.")
        origin = headers.get(b"origin")
        if origin is not None and method not in SAFE_METHODS:
            sender = origin.decode("latin-1").lower().partition("://")[2]
            if sender != host and sender not in self._own_sites:
                raise Forbidden(
                    "Pages of other sites may not send requests. Behind a proxy, pass `Host` on or "
                    "name the site in `allowed_hosts`."
                )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
