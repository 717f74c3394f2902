"""Whatever bytes an upstream answers: the client gets what they say, a clear error or an answer that is
visibly broken, and nobody gets another one's answer.
"""

import asyncio
import json
import logging
import re
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.properties.odd_bytes import OddAnswer, odd_answers
from tests.properties.strict_upstream import make_reply_body
from tests.properties.test_odd_requests import CASES, PATIENCE_SECONDS, UNSHRUNK, Errors
from tests.toy.product import serve
from tests.toy.raw import (
    Got,
    Head,
    Received,
    ask,
    read_body,
    read_head,
    render_answer,
    render_request,
)
from tests.toy.running import wait_until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]

SETTINGS = """
store: "memory:"
admin: {{port: 0}}
upstreams:
  default:
    {{base_url: "http://127.0.0.1:{port}/v1", discover: false, include_usage: false, idle_seconds: 0.3}}
  patient: {{base_url: "http://127.0.0.1:{port}/v1", discover: false, include_usage: false}}
tenants:
  - {{name: odd, keys: [sk-odd], upstream: default}}
  - {{name: plain, keys: [sk-plain], upstream: patient}}
"""
PATHS = ("/v1/chat/completions", "/v1/files")
# A recipient may take a bare line feed for the end of a line (RFC 9112 §2.2).
_LINE_END = re.compile(rb"\r?\n")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
# A folded value goes on in the next line (RFC 9112 §5.2).
_FOLD = re.compile(rb"\r?\n[ \t]+")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]+)[^\r\n]*\r?\n")
_TRAILERS = re.compile(rb"(?:[^\r\n]+\r?\n)*\r?\n")
_RESET = struct.pack("ii", 1, 0)


class OddUpstream:
    """Answers a request that names an answer with it, and any other one with a digest of its body."""

    def __init__(self) -> None:
        self.answers: Sequence[OddAnswer] = ()
        self.writers: set[asyncio.StreamWriter] = set()
        self.writing = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while (head := await read_head(reader)) is not None:
                body, is_whole = await read_body(reader, head, is_request=True)
                received = Received(head=head, body=body, is_whole=is_whole)
                if not await self._answer(received, writer):
                    return
        except ConnectionError:
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection is to stay."""
        named = received.head.values("x-answer")
        if not named:
            writer.write(render_answer(make_reply_body(received.body)))
            return True
        answer = self.answers[int(named[0])]
        self.writing += 1
        try:
            await self._write(answer, writer)
        finally:
            self.writing -= 1
        if answer.ending == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return answer.ending == "stay"

    async def _write(self, answer: OddAnswer, writer: asyncio.StreamWriter) -> None:
        # What comes behind a whole answer, and later than it, could not be told from the next one.
        cuts = () if answer.ending == "stay" else answer.cuts
        for start, end in pairwise((0, *cuts, len(answer.sent))):
            writer.write(answer.sent[start:end])
            await writer.drain()
            await asyncio.sleep(0)


class Arena:
    def __init__(self, port: int, upstream: OddUpstream, errors: list[str]) -> None:
        self.port = port
        self.upstream = upstream
        self.errors = errors


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def arena() -> AsyncIterator[Arena]:
    errors, upstream = Errors(), OddUpstream()
    logging.getLogger().addHandler(errors)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with serve(SETTINGS.format(port=port)) as gateway:
        yield Arena(gateway.port, upstream, errors.found)
    server.close()
    for writer in upstream.writers:
        writer.transport.abort()
    logging.getLogger().removeHandler(errors)


async def ask_for(arena: Arena, number: int) -> Got | None:
    """None if the connection ends without a head."""
    body = b'{"model":"m","stream":%s,"messages":[]}' % (b"true" if number % 2 else b"false")
    headers = [("Authorization", "Bearer sk-odd"), ("X-Answer", str(number))]
    sent = render_request(PATHS[number % 3 == 0], body, headers)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await ask(arena.port, sent)
    except ConnectionError:
        return None


async def ask_plainly(arena: Arena, number: int) -> None:
    """On the connections that odd answers came on, however slow this machine is."""
    body = b'{"model":"m","messages":[],"user":"%d"}' % number
    sent = render_request(PATHS[number % 2], body, [("Authorization", "Bearer sk-plain")])
    got = await ask(arena.port, sent)
    assert (got.status, got.body) == (200, make_reply_body(body))


async def read_said(answer: OddAnswer) -> Got | None:
    """The answer as its bytes say it, without interim ones; None if they say none."""
    # A reader may ignore empty lines before a head, as RFC 9112 §2.2 says of requests.
    rest = answer.sent.lstrip(b"\r\n")
    while (end := _END_OF_HEAD.search(rest)) is not None:
        lines, rest = _LINE_END.split(_FOLD.sub(b" ", rest[: end.start()])), rest[end.end() :]
        reader = asyncio.StreamReader(limit=1 << 24)
        reader.feed_data(b"\r\n".join(lines) + b"\r\n\r\n" + rest)
        reader.feed_eof()
        head = await read_head(reader)
        assert head is not None
        status = head.line.split(b" ")[1] if b" " in head.line else b""
        if status in (b"100", b"102", b"103"):
            rest = rest.lstrip(b"\r\n")
            continue
        if status in (b"204", b"304"):
            return Got(head=head, body=b"", is_whole=True)
        codings = head.values("transfer-encoding")
        if codings and not codings[-1].lower().endswith(b"chunked"):
            # RFC 9112 §6.3: then the end of the connection is that of the body.
            return Got(head=Head(head.line, ()), body=rest, is_whole=True)
        if codings:
            return read_chunks(head, rest)
        try:
            body, is_whole = await read_body(reader, head, is_request=False)
        except ValueError:
            return None
        return Got(head=head, body=body, is_whole=is_whole)
    return None


def read_chunks(head: Head, data: bytes) -> Got:
    pieces: list[bytes] = []
    at = 0
    while (size := _CHUNK_SIZE.match(data, at)) is not None:
        at = size.end() + int(size[1], 16)
        if at == size.end():
            return Got(head=head, body=b"".join(pieces), is_whole=bool(_TRAILERS.match(data, at)))
        pieces.append(data[size.end() : at])
        ending = _LINE_END.match(data, at)
        if ending is None:
            break
        at = ending.end()
    return Got(head=head, body=b"".join(pieces), is_whole=False)


async def check(answer: OddAnswer, got: Got | None) -> None:
    if got is None or not got.is_whole:
        return
    if got.status in (502, 504) and got.body.startswith(b'{"error"'):
        assert json.loads(got.body)["error"]["type"] in ("upstream_error", "server_error")
        return
    said = await read_said(answer)
    assert said is not None, f"{got} {answer}"
    assert said.is_whole and said.body == got.body, f"{got} {said} {answer}"
    unframed = not said.head.values("content-length") and not said.head.values("transfer-encoding")
    assert answer.ending == "close" or not unframed or got.status in (204, 304), f"{got} {answer}"


@settings(examples(5, exhaustive=100), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(answers=st.lists(odd_answers(), min_size=CASES, max_size=CASES))
async def test_any_bytes_of_an_upstream_are_told_as_they_are_or_as_an_error(
    arena: Arena, answers: list[OddAnswer]
) -> None:
    arena.upstream.answers = answers
    found = await asyncio.gather(*(ask_for(arena, number) for number in range(len(answers))))
    for answer, got in zip(answers, found, strict=True):
        await check(answer, got)
    await wait_until(lambda: arena.upstream.writing == 0)
    await asyncio.gather(*(ask_plainly(arena, number) for number in range(20)))
    assert arena.errors == []
