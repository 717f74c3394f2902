"""The end of a chunked body is found in any pieces, and where the library's parser finds it."""

import asyncio
from collections.abc import Sequence

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from gateway.downstream.chunks import ChunkScanner
from tests.examples import examples

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
extensions = st.sampled_from([b"", b";a", b";a=b", b';a="b c"'])
trailers = st.sampled_from([b"", b"X-T: 1\r\n", b"A: b\r\nC: d\r\n"])


def find_end(pieces: Sequence[bytes]) -> int | None:
    """The position in all pieces together. Raises ValueError."""
    scanner, before = ChunkScanner(), 0
    for piece in pieces:
        scanned = scanner.scan(piece)
        if scanned.end is not None:
            return before + scanned.end
        before += len(piece)
    return None


def find_data(pieces: Sequence[bytes]) -> bytes:
    """What the library gets."""
    scanner, data = ChunkScanner(), b""
    for piece in pieces:
        scanned = scanner.scan(piece)
        data += scanned.data
        if scanned.end is not None:
            break
    return data


def render(chunks: Sequence[bytes], extension: bytes, trailer: bytes) -> bytes:
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return framed + b"0" + extension + b"\r\n" + trailer + b"\r\n"


async def is_whole_for_the_library(body: bytes) -> bool:
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(BaseProtocol(loop), loop, 1 << 20)
    content: list[StreamReader] = []
    try:
        for data in (HEAD, body):
            messages, _, _ = parser.feed_data(data)
            content += [payload for _, payload in messages]
    except HttpProcessingError:
        return False
    return content[0].is_eof()


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), extensions, trailers, st.binary(), st.data())
async def test_the_end_is_found_in_any_pieces(
    chunks: list[bytes], extension: bytes, trailer: bytes, rest: bytes, data: st.DataObject
) -> None:
    body = render(chunks, extension, trailer)
    sent = body + rest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert find_end(pieces) == len(body)
    given = find_data(pieces)
    assert given == render(chunks, extension, b"")
    assert await is_whole_for_the_library(given)


@examples(100, exhaustive=1_000)
@given(
    st.lists(
        st.sampled_from([b"0", b"5", b"A", b"hello", b"\r\n", b"\n", b"\r", b";a", b" ", b"x:1", b"", b"0x"]),
        max_size=12,
    )
)
async def test_what_ends_here_ends_for_the_library_and_what_does_not_does_not(parts: list[bytes]) -> None:
    body = b"".join(parts)
    try:
        end = find_end([body])
        data = find_data([body])
    except ValueError:
        assert not await is_whole_for_the_library(body)
    else:
        assert await is_whole_for_the_library(data) == (end is not None)


@examples(100, exhaustive=1_000)
@given(st.lists(st.sampled_from([b"0", b"5", b"g", b"\r", b"\n", b";a", b" ", b"he", b""]), max_size=8))
async def test_the_library_never_sees_what_it_cannot_read(parts: list[bytes]) -> None:
    """Each piece is refused as soon as its bytes are wrong, so that no error of the library is left over."""
    scanner = ChunkScanner()
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(BaseProtocol(loop), loop, 1 << 20)
    parser.feed_data(HEAD)
    for part in parts:
        try:
            data, end = scanner.scan(part)
        except ValueError:
            return
        parser.feed_data(data)
        if end is not None:
            return


@pytest.mark.parametrize(
    "body",
    [
        b"no size\r\n",
        b"-1\r\n",
        b"0x5\r\n",
        b"5 \r\n",
        b"\r\n",
        b"5\nhello\r\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"1234567890abcdef\r\n",
        b"5;" + b"x" * 20_000,
        b"0\r\n" + b"X-T: 1\r\n" * 3_000,
    ],
)
def test_a_malformed_body_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        find_end([body])
