"""A request as it came: its head, shared by all that repeat it, and its body, there or still to come."""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import StreamReader, hdrs
from aiohttp.http_parser import RawRequestMessage

if TYPE_CHECKING:
    from gateway.downstream.connection import DownstreamConnection

# The one header that differs from turn to turn, and says nothing of who asks for what.
_LENGTH: Final = b"content-length"
_encode = msgspec.msgpack.Encoder().encode

# Method, target, and the headers in one piece: dozens of small ones would be compared one by one.
HeadKey = tuple[str, str, bytes]


class RequestHead:
    """The first lines of a request, and of all on its connection that are equal, length of the body aside.

    target: path and query, as they came. asks_first: the body comes when the client is told to go on.
    sameness: the same across connections: equal where method, target and headers are.
    is_read_whole: whoever answers such requests needs all of their body first; known after the first one.
    """

    def __init__(self, message: RawRequestMessage) -> None:
        self.method = message.method
        self.target = message.path
        self.version = message.version
        self.headers = message.headers
        self.raw_headers = message.raw_headers
        self.keeps_alive = not message.should_close
        self.is_read_whole = False
        self.asks_first = message.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
        same = [pair for pair in message.raw_headers if pair[0].lower() != _LENGTH]
        self.sameness: HeadKey = (message.method, message.path, _encode(same))


class Request(msgspec.Struct):
    """head: its first lines. length: of the body in bytes, where it was told.

    body: all of it, where it is there; otherwise `content` is where it comes. Neither where there is none.
    is_late: it began to come when the gateway was shutting down. task: the one that answers it.
    """

    head: RequestHead
    connection: "DownstreamConnection"
    length: int | None = None
    body: bytes | None = None
    content: StreamReader | None = None
    is_late: bool = False
    task: "asyncio.Task[None] | None" = None
