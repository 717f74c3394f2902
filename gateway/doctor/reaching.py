"""One request to an upstream, and why none reached it: the name, the port, the certificate, or time."""

import asyncio
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx2 as httpx

from gateway.doctor.finding import Diagnosis, blame
from gateway.settings import UpstreamSettings
from gateway.upstream.failures import describe_failure, list_causes
from gateway.upstream.internal_client import CALL_ERRORS
from gateway.wire.model_list import MAX_BYTES

SUBJECT: Final = "upstream"
_TIMEOUT_SECONDS: Final = 10.0
# OpenSSL's numbers of what is wrong with a certificate, X509_V_ERR_….
_EXPIRED, _SELF_SIGNED, _UNKNOWN_AUTHORITY, _OTHER_NAME = 10, 18, (19, 20, 21), (62, 64)

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, kw_only=True)
class ProbeResponse:
    """body: empty if it is larger than any that is read."""

    status: int
    headers: httpx.Headers
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One request. upstream: whose it is; url: with its path."""

    upstream: UpstreamSettings
    method: str
    url: str
    headers: Headers
    body: bytes | None = None


async def send_probe(client: httpx.AsyncClient, probe: Probe) -> ProbeResponse | Diagnosis:
    """A finding if nothing was answered."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await _send(client, probe)
    except CALL_ERRORS as error:
        return _explain(probe.upstream, error)


async def _send(client: httpx.AsyncClient, probe: Probe) -> ProbeResponse:
    """Raises CALL_ERRORS."""
    built = client.build_request(
        probe.method, probe.url, headers=list(probe.headers), content=probe.body, timeout=_TIMEOUT_SECONDS
    )
    response = await client.send(built, stream=True)
    data = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            data += chunk
            if len(data) > MAX_BYTES:
                data.clear()
                break
    finally:
        await response.aclose()
    return ProbeResponse(status=response.status_code, headers=response.headers, body=bytes(data))


def _explain(upstream: UpstreamSettings, error: BaseException) -> Diagnosis:
    what = f"{upstream.name}: {describe_failure(error, upstream.base_url)}"
    return blame(SUBJECT, what, _choose_fix(upstream, list(list_causes(error))))


def _choose_fix(upstream: UpstreamSettings, causes: list[BaseException]) -> str:
    parts = urlsplit(upstream.base_url)
    host, key = parts.hostname or "", f"upstreams.{upstream.name}.base_url"
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _fix_certificate(cause.verify_code, host)
        if isinstance(cause, socket.gaierror):
            return f"getent hosts {host}  # then correct {key}, or the DNS of this machine"
        if isinstance(cause, ssl.SSLError):
            return f"base_url: http://{parts.netloc}{parts.path}  # if the server speaks no TLS"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return f"start the server, or correct the port in {key}"
    return f"curl -v {upstream.base_url}/models  # a firewall, a proxy, or {key}"


def _fix_certificate(code: int, host: str) -> str:
    if code == _EXPIRED:
        return f"renew the certificate of {host}; `date` shows whether the clock here is right"
    if code == _SELF_SIGNED or code in _UNKNOWN_AUTHORITY:
        # Both HTTP clients of the gateway trust what the system trusts.
        return "cp CA.pem /usr/local/share/ca-certificates/CA.crt && update-ca-certificates"
    if code in _OTHER_NAME:
        return f"use a name in base_url that the certificate is for, not {host}"
    return f"openssl s_client -connect {host}:443  # shows the certificate that is not accepted"
