"""What must not be taken for a response, although the library's parser accepts it.

Pure. The parser is lenient where a gateway must not be: what it lets pass could end at another byte for the
client than for us.
"""

import re
from itertools import chain
from typing import Final

from aiohttp import EMPTY_PAYLOAD, HttpVersion10, HttpVersion11, StreamReader, hdrs
from aiohttp.http_parser import RawResponseMessage

_SWITCHING_PROTOCOLS: Final = 101
# RFC 9110 §5.6.2, and the line break that stands between the names here.
_TOKENS: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z\n]*")
# We send no TE, so nothing else may come (RFC 9112 §7.4). The second changes nothing; old servers send it.
_TRANSFER_ENCODINGS: Final = frozenset({"chunked", "identity"})
# A petabyte, less one byte. The library's parser takes some larger numbers for "no body".
_MAX_LENGTH_DIGITS: Final = 15
# Colon, space and line end.
_LINE_BYTES: Final = 4


def is_interim(message: RawResponseMessage) -> bool:
    """Whether a final response is still to come (RFC 9110 §15.2). Those are not passed on."""
    return 100 <= message.code < 200 and message.code != _SWITCHING_PROTOCOLS


def find_fault(message: RawResponseMessage) -> str | None:
    """Why this is not a final response, as the end of a sentence; None if it is one.

    1. It is in another version of HTTP.
    2. It switches protocols, which was not asked for; or its status has no meaning.
    3. A header's name has a blank in it or behind it, so that recipients differ in what it means.
    4. Its length or transfer encoding does not say clearly where the body ends.
    """
    if message.version not in (HttpVersion10, HttpVersion11):
        return f"answered in HTTP/{message.version.major}.{message.version.minor}"
    if message.code == _SWITCHING_PROTOCOLS:
        return "switched protocols (101), which was not asked for"
    if message.code < 100:
        return f"answered with the status {message.code:03}"
    if not _TOKENS.fullmatch(b"\n".join([name for name, _ in message.raw_headers])):
        return "sent a header whose name is not valid"
    return _find_framing_fault(message)


def ends_with_connection(message: RawResponseMessage, content: StreamReader) -> bool:
    """Whether only the end of the connection shows where the body ends (RFC 9112 §6.3)."""
    return not message.chunked and content is not EMPTY_PAYLOAD and hdrs.CONTENT_LENGTH not in message.headers


def count_head_bytes(message: RawResponseMessage) -> int:
    """Bytes of the header lines."""
    lines = message.raw_headers
    return sum(map(len, chain.from_iterable(lines))) + _LINE_BYTES * len(lines)


def _find_framing_fault(message: RawResponseMessage) -> str | None:
    length = message.headers.get(hdrs.CONTENT_LENGTH)
    if length is not None and (len(length) > _MAX_LENGTH_DIGITS or not length.isdecimal()):
        return "sent a Content-Length that is not valid"
    encodings = message.headers.getall(hdrs.TRANSFER_ENCODING, None)
    if encodings and (len(encodings) > 1 or encodings[0].lower() not in _TRANSFER_ENCODINGS):
        return "sent a Transfer-Encoding other than chunked"
    return None
