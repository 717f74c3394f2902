"""Detects upstreams that lead back to a gateway: requests would go in circles, or be compacted twice.

Sends nothing: the gateway's own address is recognized as a local one, another gateway by its response
headers.
"""

import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from gateway.core.errors import RequestRefused
from gateway.settings import Listen, UpstreamSettings

_DEFAULT_PORTS = {"http": 80, "https": 443}


def leads_to_itself(upstream: UpstreamSettings, listen: Listen, port: int) -> bool:
    """Whether the base URL resolves to an address of this machine, at the port of `listen`. Blocks on DNS."""
    parts = urlsplit(upstream.base_url)
    if (parts.port or _DEFAULT_PORTS.get(parts.scheme)) != port:
        return False
    try:
        addresses = {
            entry[4][0] for entry in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        }
    except OSError:
        return False
    if listen.host in addresses:
        return True
    return listen.host in ("", "0.0.0.0", "::") and any(_is_local(str(address)) for address in addresses)


def describe_loop(upstreams: Iterable[UpstreamSettings], listen: Listen, port: int) -> str | None:
    """Which upstream leads to the gateway itself; None if none does. Blocks on DNS."""
    for upstream in upstreams:
        if leads_to_itself(upstream, listen, port):
            return f"upstream '{upstream.name}' ({upstream.base_url}) points at the gateway itself"
    return None


def make_loop_error(upstream: UpstreamSettings) -> RequestRefused:
    """For a response that comes from another gateway, which `X-Gateway-Plan` tells."""
    message = f"Upstream '{upstream.name}' is a gateway itself; point base_url at the model API."
    return RequestRefused(508, message, kind="server_error", code="gateway_loop")


def _is_local(address: str) -> bool:
    """Only an address of this machine can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
