"""The HTTP client for the gateway's own calls: summaries, model lists, webhooks.

It keeps no cookies, follows no redirects and ignores proxies named in the environment.
"""

import ssl
from collections.abc import Iterable
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx2 as httpx

# Everything that a call may raise if no response came.
CALL_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError)
# End-to-end headers that describe the caller's own request; they do not fit another one.
_DROPPED: Final = frozenset(
    {
        *("accept", "accept-encoding", "content-type", "content-encoding", "content-length", "host"),
        *("idempotency-key", "x-idempotency-key", "if-match", "if-none-match", "range"),
    }
)


def open_client() -> httpx.AsyncClient:
    """The caller closes it."""
    # A cookie of one tenant must never be sent for another, so this jar accepts none.
    jar = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(verify=_load_trusted(), follow_redirects=False, trust_env=False, cookies=jar)


@cache
def _load_trusted() -> ssl.SSLContext:
    """The certificates that are trusted, once a process: it takes some 50 ms."""
    return httpx.create_ssl_context(trust_env=False)


def make_internal_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Those of the caller's end-to-end headers that may be sent with an internal call."""
    return [
        (name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape"))
        for name, value in headers
        if name.lower() not in _DROPPED
    ]
