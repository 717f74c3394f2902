"""Heads that the library's parser accepts and a gateway must refuse.

What goes upstream is framed anew. So a request whose own framing, version or method could be read in two ways
is not forwarded at all.
"""

import re
from typing import Final

from aiohttp import HttpVersion, HttpVersion10, HttpVersion11, hdrs

from gateway.core.errors import RequestRefused
from gateway.downstream.request import RequestHead

# RFC 9110 §7.2, RFC 3986 §3.2.2: characters of a host and port.
_HOST: Final = re.compile(r"[\w.~%!$&'()*+,;=:\[\]-]*", re.ASCII)


def find_refusal(head: RequestHead, version: HttpVersion) -> RequestRefused | None:
    """The reason why the connection must end behind an error; None for a request that may be served."""
    headers = head.headers
    if version not in (HttpVersion11, HttpVersion10):
        return RequestRefused(505, "Only HTTP/1.1 and HTTP/1.0 are supported.")
    if head.method == hdrs.METH_CONNECT:
        # It asks for a tunnel (RFC 9110 §9.3.6).
        return RequestRefused(501, "The method CONNECT is not supported.")
    coding = headers.get(hdrs.TRANSFER_ENCODING)
    if coding is not None:
        if version == HttpVersion10:
            # RFC 9112 §6.1.
            return RequestRefused(400, "HTTP/1.0 has no transfer coding.")
        if coding.lower() != "chunked":
            return RequestRefused(501, "No transfer coding but chunked is supported.")
    if headers.get(hdrs.EXPECT, "100-continue").lower() != "100-continue":
        return RequestRefused(417, "No expectation but 100-continue is supported.")
    if "#" in head.target or not _HOST.fullmatch(headers.get(hdrs.HOST, "")):
        return RequestRefused(400, "The request's target or host is not valid.")
    return None
