"""One request to an upstream, and why none reached it: the name, the port, the certificate, or time."""

import socket
import ssl
from collections.abc import Awaitable
from typing import Final
from urllib.parse import urlsplit

from gateway.doctor.finding import Diagnosis, blame
from gateway.http.client import Fetched
from gateway.http.failures import CALL_ERRORS, describe_failure, list_causes
from gateway.settings import UpstreamSettings

SUBJECT: Final = "upstream"
# OpenSSL's numbers of what is wrong with a certificate, X509_V_ERR_….
_EXPIRED, _SELF_SIGNED, _UNKNOWN_AUTHORITY, _OTHER_NAME = 10, 18, (19, 20, 21), (62, 64)


async def reach(upstream: UpstreamSettings, call: Awaitable[Fetched]) -> Fetched | Diagnosis:
    """A finding if nothing was answered."""
    try:
        return await call
    except CALL_ERRORS as error:
        return explain(upstream, error)


def explain(upstream: UpstreamSettings, error: BaseException) -> Diagnosis:
    """Why no response came."""
    what = f"{upstream.name}: {describe_failure(error, upstream.base_url)}"
    return blame(SUBJECT, what, _choose_fix(upstream, list(list_causes(error))))


def _choose_fix(upstream: UpstreamSettings, causes: list[BaseException]) -> str:
    parts = urlsplit(upstream.base_url)
    host, key = parts.hostname or "", f"upstreams.{upstream.name}.base_url"
    for cause in reversed(causes):
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
        # Without `ca_file`, what the system trusts is trusted.
        return "cp CA.pem /usr/local/share/ca-certificates/CA.crt && update-ca-certificates"
    if code in _OTHER_NAME:
        return f"use a name in base_url that the certificate is for, not {host}"
    return f"openssl s_client -connect {host}:443  # shows the certificate that is not accepted"
