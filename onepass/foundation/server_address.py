"""The addresses of servers, which the command and the client know without a package of serving."""

import ipaddress
from urllib.parse import urlsplit

from onepass.foundation.errors import UserError

SCHEMES = ("http://", "https://", "grpc://", "grpcs://")  # prefixes of server addresses
TOKEN_VARIABLE = "ONEPASS_TOKEN"
"""The environment variable with the token that a server asks for and a client sends."""


def is_url(word: object) -> bool:
    """Return whether a value is the URL of a served model; schemes ignore case (RFC 3986, 3.1)."""
    return str(word).lower().startswith(SCHEMES)


def check_address(address: str) -> tuple[str, str]:
    """Return the scheme and HOST:PORT of an address; raise UserError if it is invalid.

    An address of HTTP may also have the path of a proxy, HOST:PORT/PATH.
    """
    rule = "must be http://HOST:PORT[/PATH] or grpc://HOST:PORT, with TLS https:// or grpcs://"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise UserError(f"The address {rule}, got {address}.") from None
    path = parts.path.rstrip("/")
    is_grpc = parts.scheme.startswith("grpc")
    plain = not (parts.query or parts.fragment or parts.username or (is_grpc and path))
    if f"{parts.scheme}://" not in SCHEMES or not parts.hostname or not plain:
        raise UserError(f"The address {rule}, got {address}.")
    if is_grpc and port is None:
        raise UserError(f"The address {rule}, got {address} without a port.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parts.scheme, (host if port is None else f"{host}:{port}") + path


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
