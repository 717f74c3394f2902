"""An upstream that falls silent, sends nonsense or is absent: the exchange ends in time and never cleanly."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.toy.product import serve
from tests.toy.raw import (
    Ending,
    Received,
    ask,
    render_answer,
    render_chunks,
    render_request,
    writing,
)
from tests.toy.wire import MESSAGES_PATH, PATHS, STREAMED, WHOLE, Wire, opening_wire, render_chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDLE_SECONDS = 0.4
WIRE_UPSTREAM = f"idle_seconds: {IDLE_SECONDS}"
# An exchange with pauses outlasts this, so that a pause of the machine is not taken for one.
LONG_IDLE_SECONDS = 1.5
PAUSES, PAUSE_SECONDS = 18, 0.1
# Without an idle timeout these waits would never end. The machine may be busy, so this is generous.
PATIENCE_SECONDS = 60.0


async def hung_up(wire: Wire) -> None:
    """Returns once the upstream has seen the connection close."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not all(seen.hung_up_at is not None for seen in wire.upstream.received):
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def patient_wire() -> AsyncIterator[Wire]:
    async with opening_wire(f"idle_seconds: {LONG_IDLE_SECONDS}") as wire:
        yield wire


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [STREAMED, WHOLE], ids=["stream", "whole"])
async def test_silence_before_the_response_ends_in_504(wire: Wire, path: str, body: bytes) -> None:
    wire.upstream.script = writing(then="hang")
    got = await asyncio.wait_for(wire.ask(render_request(path, body)), PATIENCE_SECONDS)
    assert (got.status, json.loads(got.body)["error"]["type"]) == (504, "upstream_error")
    await hung_up(wire)


@pytest.mark.parametrize("piece", [b"x", b"\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n"])
async def test_a_head_that_never_ends_is_as_good_as_silence(wire: Wire, piece: bytes) -> None:
    """Only a whole head is a sign of life; otherwise a byte now and then would hold a request for ever."""

    async def trickle(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-A: " if piece == b"x" else b"")
        while True:
            writer.write(piece)
            await asyncio.sleep(IDLE_SECONDS / 8)

    wire.upstream.script = trickle
    got = await asyncio.wait_for(wire.ask(render_request("/v1/other", WHOLE)), PATIENCE_SECONDS)
    assert got.status == 504
    assert "was silent for" in got.body.decode()


@pytest.mark.parametrize("path", PATHS)
async def test_silence_within_a_response_breaks_it_off(wire: Wire, path: str) -> None:
    for pieces in (render_chunks([b"data: {}\n\n"])[:-1], [render_answer(b"{}" * 9)[:-3]]):
        wire.upstream.script = writing(*pieces, then="hang")
        got = await asyncio.wait_for(wire.ask(render_request(path, STREAMED)), PATIENCE_SECONDS)
        # On a machine that pauses, nothing may have come before the time was over.
        assert not got.is_whole or got.status == 504
    await hung_up(wire)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "junk", [b"this is no size\r\n", b"-1\r\n", b"5\r\nabcdefgh\r\n", b"\x00\xff\r\n\r\n"]
)
async def test_a_malformed_chunk_never_hangs_and_never_ends_well(wire: Wire, path: str, junk: bytes) -> None:
    """The C parser of aiohttp waits forever for the rest of a malformed chunk."""
    head, chunk, _ = render_chunks([b"data: {}\n\n"])
    wire.upstream.script = writing(head, chunk, junk, then="hang")
    got = await asyncio.wait_for(wire.ask(render_request(path, STREAMED)), PATIENCE_SECONDS)
    assert not (got.status == 200 and got.is_whole)


NO_HEADS = {
    "nothing": b"",
    "junk": b"no HTTP at all\r\n\r\n",
    "status": b"HTTP/1.1 abc\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    "too long": b"HTTP/1.1 200 OK\r\nX-Odd: " + b"y" * 100_000 + b"\r\n\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"X-A: y\r\n" * 300_000,
}


@pytest.mark.parametrize("head", NO_HEADS)
@pytest.mark.parametrize("ending", ["close", "reset", "hang"])
async def test_a_response_that_is_not_http_ends_in_an_error_of_the_gateway(
    wire: Wire, head: str, ending: Ending
) -> None:
    wire.upstream.script = writing(NO_HEADS[head], then=ending)
    requests = [*(render_request(path, WHOLE) for path in PATHS), render_request(MESSAGES_PATH, WHOLE)]
    answers = await asyncio.wait_for(asyncio.gather(*map(wire.ask, requests)), PATIENCE_SECONDS)
    for got in answers:
        assert got.status in (502, 504)
        assert json.loads(got.body)["error"]["type"] in ("upstream_error", "api_error", "timeout_error")
    assert json.loads(answers[-1].body)["type"] == "error"


async def test_a_slow_response_is_not_a_silent_one(patient_wire: Wire) -> None:
    async def trickle(_: Received, writer: asyncio.StreamWriter) -> None:
        for piece in render_chunks([b": ping\n\n"] * PAUSES):
            writer.write(piece)
            await asyncio.sleep(PAUSE_SECONDS)

    patient_wire.upstream.script = trickle
    got = await patient_wire.chat(STREAMED)
    assert (got.body, got.is_whole) == (b": ping\n\n" * PAUSES, True)


async def test_a_slow_sender_is_not_a_silent_upstream(patient_wire: Wire) -> None:
    """An upload may take longer than the idle timeout of the upstream."""
    patient_wire.upstream.script = writing(render_answer())
    async with patient_wire.connecting() as connection:
        head = f"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: {PAUSES}\r\n\r\n"
        await connection.send(head.encode())
        for _ in range(PAUSES):
            await asyncio.sleep(PAUSE_SECONDS)
            await connection.send(b"x")
        got = await connection.receive()
    assert got.status == 200


async def test_a_slow_reader_is_not_a_silent_upstream(wire: Wire) -> None:
    body = b"x" * (30 << 20)
    wire.upstream.script = writing(render_answer(body))
    async with wire.connecting() as connection:
        await connection.send(render_chat(WHOLE))
        await connection.reader.readuntil(b"\r\n\r\n")
        received = 0
        while received < len(body):
            received += len(await connection.reader.read(1 << 20))
            await asyncio.sleep(2 * IDLE_SECONDS / 30)
    assert received == len(body)


SECRET = "sk-upstream-secret"
CALLERS = "sk-callers-secret"


@pytest.mark.parametrize(
    ("host", "reason"), [("127.0.0.1:1", "connection refused"), ("no-such-host.invalid", "name not found")]
)
async def test_an_absent_upstream_ends_in_502_with_its_address_and_no_secret(host: str, reason: str) -> None:
    yaml = (
        f'store: "memory:"\nlisten: {{hosts: [gateway.test]}}\nupstreams:\n'
        f'  default: {{base_url: "http://{host}/v1", api_key: "{SECRET}"}}\n'
    )
    headers = [("Authorization", f"Bearer {CALLERS}")]
    async with serve(yaml) as gateway:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            got = await ask(gateway.port, render_request(path, WHOLE, headers))
            error = json.loads(got.body)["error"]
            assert (got.status, error["type"], error["param"]) == (502, "upstream_error", None)
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"] == (
                f"No response from upstream (default: could not connect to http://{host}: {reason})."
            )
            assert not any(secret in str(got) for secret in (SECRET, CALLERS))
        anthropic = await ask(gateway.port, render_request("/v1/messages", WHOLE, headers))
        assert json.loads(anthropic.body)["type"] == "error"


async def test_the_request_after_a_failure_succeeds(wire: Wire) -> None:
    wire.upstream.script = writing(b"", then="close")
    assert (await wire.chat(WHOLE)).status == 502
    wire.upstream.script = writing(render_answer())
    assert (await wire.chat(WHOLE)).status == 200
