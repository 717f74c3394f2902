"""Heads that come again are recognised by their bytes, and nothing else is."""

import asyncio

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from gateway.downstream.repeated_head import RepeatedHead, learn_head
from gateway.downstream.request import RequestHead

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: %b\r\nAuthorization: Bearer k\r\n\r\n"


def parse(head: bytes) -> RequestHead:
    loop = asyncio.new_event_loop()
    try:
        messages, _, _ = HttpRequestParser(BaseProtocol(loop), loop, 1 << 16).feed_data(head)
    finally:
        loop.close()
    return RequestHead(messages[0][0])


def learn(head: bytes) -> RepeatedHead:
    known = learn_head(parse(head), head)
    assert known is not None
    return known


KNOWN = learn(HEAD % b"17")


@pytest.mark.parametrize("length", [0, 5, 17, 999_999_999_999])
@pytest.mark.parametrize("body", [b"", b"{}", b"\r\n\r\n"])
def test_another_length_is_the_same_head(length: int, body: bytes) -> None:
    head = HEAD % b"%d" % length
    assert KNOWN.match(head + body) == (length, len(head))
    assert KNOWN.line.target == "/v1/x"


@pytest.mark.parametrize(
    "length",
    [b"", b" 5", b"5 ", b"+5", b"-5", b"5, 5", b"0x5", b"5\r\nContent-Length: 6", b"9" * 13, b"\xb2"],
)
def test_what_is_no_plain_number_is_left_to_the_parser(length: bytes) -> None:
    assert KNOWN.match(HEAD % length + b"{}") is None


@given(st.integers(0, len(HEAD % b"17") - 1), st.binary(max_size=3))
def test_one_byte_more_or_less_is_another_head(at: int, junk: bytes) -> None:
    head = HEAD % b"17"
    start, end = head.index(b"17"), head.index(b"17") + 2
    changed = head[:at] + junk + head[at + 1 :]
    is_about_the_length = changed.startswith(head[:start]) and changed.endswith(head[end:])
    if not is_about_the_length:
        assert KNOWN.match(changed) is None


@given(st.integers(0, len(HEAD % b"17") - 1))
def test_a_part_of_it_is_not_it(size: int) -> None:
    assert KNOWN.match((HEAD % b"17")[:size]) is None


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nX-Content-Length: 5\r\n\r\n",
    ],
)
def test_a_head_without_a_length_is_not_learnt(head: bytes) -> None:
    assert learn_head(parse(head), head) is None


def test_the_name_of_the_header_may_be_written_in_any_way() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH:5\r\n\r\n"
    assert learn(head).match(head.replace(b"5", b"1234") + b"x") == (1234, len(head) + 3)


def test_heads_are_the_same_whatever_they_say_of_the_length() -> None:
    first, second, other = parse(HEAD % b"1"), parse(HEAD % b"22"), parse((HEAD % b"1").replace(b"k", b"l"))
    assert first.sameness == second.sameness != other.sameness
