"""What all calls of our own have in common: one client, and the caller's headers that may go with them.

Keeps no cookie, follows no redirect, and knows no proxy of the environment.
"""

from collections.abc import Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx2 as httpx

# Whatever a call of our own may raise where no answer came.
CALL_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError)
# End-to-end headers that belong to the client's own request and not to one of ours.
_DROPPED: Final = frozenset(
    {
        *("accept", "accept-encoding", "content-type", "content-encoding", "content-length", "host"),
        *("idempotency-key", "x-idempotency-key", "if-match", "if-none-match", "range"),
    }
)


def open_client() -> httpx.AsyncClient:
    """Some 50 ms, for the trusted certificates. Whoever opens it closes it."""
    # A cookie of one tenant must never be sent for another: this jar takes none.
    jar = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(follow_redirects=False, trust_env=False, cookies=jar)


def make_own_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Of end-to-end headers those that may go with a call of ours, as bytes."""
    return [
        (name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape"))
        for name, value in headers
        if name.lower() not in _DROPPED
    ]
