"""Which heads that the library's parser accepts are refused, and why."""

import asyncio

import pytest
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage

from gateway.upstream.response_rules import count_head_bytes, ends_with_connection, find_fault, is_interim

LINE = b"HTTP/1.1 200 OK"


async def parse(head: bytes, *, has_body: bool = True) -> tuple[RawResponseMessage, StreamReader]:
    protocol = ResponseHandler(asyncio.get_running_loop())
    protocol.set_response_params(skip_payload=not has_body, read_until_eof=True)
    protocol.data_received(head + b"\r\n\r\n")
    message, content = await protocol.read()
    return message, content


@pytest.mark.parametrize(
    "head",
    [
        LINE,
        b"HTTP/1.0 200",
        b"HTTP/1.1 999 Odd",
        LINE + b"\r\nContent-Length: 0",
        LINE + b"\r\nContent-Length: 999999999999999",
        LINE + b"\r\nTransfer-Encoding: Chunked",
        LINE + b"\r\nTransfer-Encoding: identity",
        LINE + b"\r\n!#$%&'*+-.^_`|~09azAZ: y\r\nX-Old: caf\xe9",
    ],
)
async def test_a_clear_response_has_no_fault(head: bytes) -> None:
    message, _ = await parse(head)
    assert find_fault(message) is None
    assert not is_interim(message)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"HTTP/0.9 200 OK", "answered in HTTP/0.9"),
        (b"HTTP/2.0 200 OK", "answered in HTTP/2.0"),
        (b"HTTP/1.1 000 Odd", "answered with the status 000"),
        (b"HTTP/1.1 099 Odd", "answered with the status 099"),
        (b"HTTP/1.1 101 Switching Protocols", "switched protocols (101), which was not asked for"),
        (LINE + b"\r\nContent-Length : 2", "sent a header whose name is not valid"),
        (LINE + b"\r\nTransfer-Encoding : chunked", "sent a header whose name is not valid"),
        (LINE + b"\r\nContent-Length: 18446744073709551615", "sent a Content-Length that is not valid"),
        (LINE + b"\r\nContent-Length: 1000000000000000", "sent a Content-Length that is not valid"),
        (LINE + b"\r\nTransfer-Encoding: gzip, chunked", "sent a Transfer-Encoding other than chunked"),
        (LINE + b"\r\nTransfer-Encoding: gzip", "sent a Transfer-Encoding other than chunked"),
        (LINE + b"\r\nTransfer-Encoding: xchunked", "sent a Transfer-Encoding other than chunked"),
        (LINE + b"\r\nTransfer-Encoding:", "sent a Transfer-Encoding other than chunked"),
        (
            LINE + b"\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "sent a Transfer-Encoding other than chunked",
        ),
    ],
)
async def test_a_response_whose_meaning_or_end_is_unclear_has_a_fault(head: bytes, reason: str) -> None:
    message, _ = await parse(head)
    assert find_fault(message) == reason


@pytest.mark.parametrize(("status", "expected"), [(100, True), (103, True), (199, True), (101, False)])
async def test_informational_responses_are_interim_except_a_switch_of_protocols(
    status: int, expected: bool
) -> None:
    message, _ = await parse(b"HTTP/1.1 %d X" % status)
    assert is_interim(message) is expected


@pytest.mark.parametrize(
    ("head", "has_body", "expected"),
    [
        (LINE, True, True),
        (LINE, False, False),
        (b"HTTP/1.1 204 No Content", True, False),
        (b"HTTP/1.1 304 Not Modified", True, False),
        (LINE + b"\r\nContent-Length: 2", True, False),
        (LINE + b"\r\nContent-Length: 0", True, False),
        (LINE + b"\r\nTransfer-Encoding: chunked", True, False),
        (LINE + b"\r\nTransfer-Encoding: identity", True, True),
    ],
)
async def test_a_body_without_length_and_chunks_ends_with_its_connection(
    head: bytes, has_body: bool, expected: bool
) -> None:
    assert ends_with_connection(*await parse(head, has_body=has_body)) is expected


async def test_the_size_of_a_head_counts_names_values_and_line_ends() -> None:
    message, _ = await parse(LINE + b"\r\nX-A: 1\r\nX-B: 22")
    assert count_head_bytes(message) == len(b"X-A: 1\r\nX-B: 22\r\n")
