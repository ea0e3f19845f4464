"""Finds a client's address behind proxies; a variable lists the trusted ones, as in uvicorn."""

import ipaddress
import os
from collections.abc import Mapping
from typing import Any

PROXIES_VARIABLE, DEFAULT_PROXIES = "FORWARDED_ALLOW_IPS", "127.0.0.1"
FORWARDED = "x-forwarded-for"


def client_address(peer: str, metadata: Mapping[str, Any]) -> str:
    """Return the client's address, as named by a trusted proxy, or else the peer's address.

    "x-forwarded-for" lists the client's address, and then those of the proxies on the way.
    """
    given = metadata.get(FORWARDED)
    if not isinstance(given, str) or not is_proxy(peer):
        return peer
    named = [address.strip() for address in given.split(",")]
    return next((address for address in reversed(named) if not is_proxy(address)), named[0])


def is_proxy(address: str) -> bool:
    """Return whether an address belongs to a trusted proxy."""
    trusted = os.environ.get(PROXIES_VARIABLE, DEFAULT_PROXIES).split(",")
    return any(_is_in(address, proxy.strip()) for proxy in trusted)


def _is_in(address: str, proxy: str) -> bool:
    if proxy in ("*", address):
        return True
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(proxy)
    except ValueError:
        return False
