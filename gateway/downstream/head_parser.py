"""The library's parser of requests, with our bounds and our words for what is no HTTP."""

import asyncio
import logging
from typing import Final

from aiohttp import StreamReader, hdrs
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError
from aiohttp.http_parser import HttpParser, HttpRequestParser, RawRequestMessage

from gateway.core.errors import RequestRefused

log = logging.getLogger("gateway.head_parser")

# What a stream of a body holds before its sender has to wait.
READ_BYTES: Final = 1 << 18
# Requests that may be read ahead of the one that is answered.
MOST_AHEAD: Final = 32
# Headers of agents carry turn metadata and cookies; 8,190 bytes (the library's default) is not enough.
_HEADER_BYTES: Final = 1 << 16
_MOST_HEADERS: Final = 256
# A petabyte, less one byte: beyond it the library takes some numbers for "no body".
_MOST_LENGTH_DIGITS: Final = 15


def make_parser(protocol: BaseProtocol, loop: asyncio.AbstractEventLoop) -> HttpRequestParser:
    return HttpRequestParser(
        protocol,
        loop,
        READ_BYTES,
        max_line_size=_HEADER_BYTES,
        max_field_size=_HEADER_BYTES,
        max_headers=_MOST_HEADERS,
        auto_decompress=False,
        max_msg_queue_size=MOST_AHEAD,
    )


def parse(
    parser: HttpParser[RawRequestMessage], data: bytes
) -> tuple[list[tuple[RawRequestMessage, StreamReader]], bool]:
    """The requests whose heads are complete now; does another protocol follow? Raises RequestRefused."""
    try:
        messages, is_upgraded, _ = parser.feed_data(data)
        for message, _ in messages:
            if len(message.headers.get(hdrs.CONTENT_LENGTH, "")) > _MOST_LENGTH_DIGITS:
                raise BadHttpMessage("a length beyond reason")
    except HttpProcessingError as error:
        # Its text quotes the line that could not be read: keys are in those.
        log.info("%s on a connection", type(error).__name__)
        raise RequestRefused(400, "The request is not valid HTTP.") from None
    return list(messages), is_upgraded
