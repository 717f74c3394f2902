"""The first lines of a request to an upstream: where it goes, and the end-to-end headers that go with it.

Written out by ourselves, and once for all requests that say the same: bytes that no library would write, or
would mend, pass as they came. Knows nothing of bodies.
"""

from functools import cached_property

from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from gateway.header_text import CONTROL


class RequestHead:
    """`target`: path and query as they go out. `headers`: shared between calls. Neither ever changes."""

    def __init__(self, method: str, url: URL, target: str, headers: CIMultiDict[str]) -> None:
        self.method = method
        self.url = url
        self.target = target
        self.headers = headers

    @cached_property
    def lines(self) -> bytes:
        """All but what frames the body, and the empty line. Raises ValueError for what no line may hold."""
        host = self.url.host_port_subcomponent or ""
        lines = [f"{self.method} {self.target} HTTP/1.1", f"{hdrs.HOST}: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if any(map(CONTROL.search, lines)):
            raise ValueError("a control character in a request head")
        return "\r\n".join([*lines, ""]).encode("utf-8", "surrogateescape")

    @cached_property
    def plain(self) -> "RequestHead":
        """The same for a body without content encoding; itself where it has none."""
        if hdrs.CONTENT_ENCODING not in self.headers:
            return self
        headers = self.headers.copy()
        headers.popall(hdrs.CONTENT_ENCODING)
        return RequestHead(self.method, self.url, self.target, headers)

    @cached_property
    def uncoded(self) -> "RequestHead":
        """The same, asking for an answer that we can edit as it comes."""
        return self.with_header(hdrs.ACCEPT_ENCODING, "identity")

    def with_header(self, name: str, value: str) -> "RequestHead":
        headers = self.headers.copy()
        headers[name] = value
        return RequestHead(self.method, self.url, self.target, headers)
