"""The toy upstream over its real socket: replies, refusals, broken responses, and the requests it keeps."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.toy.delivery import Delivery, Ending, RawAnswer
from tests.toy.reply import Reply, ToolCall
from tests.toy.running import Answer, ask, wait_until
from tests.toy.summarising import SOURCE_PROMPT
from tests.toy.upstream import ToyUpstream

HELLO = {"role": "user", "content": "Hello, please remember FACT-AAAA2222 and FACT-BBBB3333."}


@pytest.fixture
async def toy() -> AsyncIterator[ToyUpstream]:
    async with ToyUpstream(window=4_000) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def chat(client: aiohttp.ClientSession, toy: ToyUpstream, **fields: object) -> Answer:
    body = json.dumps({"model": "toy-model", "messages": [HELLO]} | fields).encode()
    return await ask(client, f"{toy.base_url}/chat/completions", body)


def events(answer: Answer) -> list[Any]:
    lines = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


async def test_usage_is_what_the_toy_counted(toy: ToyUpstream, client: aiohttp.ClientSession) -> None:
    answer = json.loads((await chat(client, toy)).body)
    assert answer["usage"]["prompt_tokens"] == toy.requests[0].prompt_tokens > 0
    assert answer["usage"]["completion_tokens"] == toy.counter.text("Understood.")


@pytest.mark.parametrize("asked", [True, False])
async def test_a_stream_has_a_usage_chunk_only_when_asked(
    toy: ToyUpstream, client: aiohttp.ClientSession, asked: bool
) -> None:
    toy.reply = lambda _: Reply(text="abc" * 99, tool_calls=(ToolCall(id="c1", name="look", arguments="{}"),))
    options = {"stream_options": {"include_usage": True}} if asked else {}
    answer = await chat(client, toy, stream=True, **options)
    chunks = events(answer)
    assert answer.is_whole
    assert [chunk["choices"] == [] for chunk in chunks].count(True) == int(asked)
    assert all(("usage" in chunk) == asked for chunk in chunks)
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == "abc" * 99


async def test_over_the_window_is_refused_in_openais_words(
    toy: ToyUpstream, client: aiohttp.ClientSession
) -> None:
    prompt_tokens = toy.counter.prompt({"messages": [HELLO]})
    fits = await chat(client, toy, max_tokens=4_000 - prompt_tokens)
    refused = await chat(client, toy, max_tokens=4_001 - prompt_tokens)
    error = json.loads(refused.body)["error"]
    assert (fits.status, refused.status) == (200, 400)
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 4000 tokens. However, you requested 4001 tokens" in error["message"]
    assert toy.requests[1].refusal == error["message"]


async def test_an_invalid_request_is_refused(toy: ToyUpstream, client: aiohttp.ClientSession) -> None:
    refused = await chat(client, toy, messages=[])
    assert refused.status == 400
    assert json.loads(refused.body)["error"]["type"] == "invalid_request_error"
    assert (await ask(client, f"{toy.base_url}/chat/completions", b"{")).status == 400


async def test_a_reply_stops_at_the_requested_output(toy: ToyUpstream, client: aiohttp.ClientSession) -> None:
    toy.reply = lambda _: Reply(text="many words " * 500)
    answer = json.loads((await chat(client, toy, max_tokens=50)).body)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] <= 50


async def test_a_summary_repeats_every_fact(toy: ToyUpstream, client: aiohttp.ClientSession) -> None:
    asking = [
        HELLO,
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": SOURCE_PROMPT + "."},
    ]
    answer = json.loads((await chat(client, toy, messages=asking, max_tokens=900)).body)
    assert toy.requests[0].is_summary and toy.chats == []
    assert toy.requests[0].facts == ("FACT-AAAA2222", "FACT-BBBB3333")
    assert all(fact in answer["choices"][0]["message"]["content"] for fact in toy.requests[0].facts)
    assert 600 < answer["usage"]["completion_tokens"] <= 900
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_summary_beyond_the_requested_output_is_cut(
    toy: ToyUpstream, client: aiohttp.ClientSession
) -> None:
    toy.summary_tokens = 2_000
    asking = [HELLO, {"role": "user", "content": SOURCE_PROMPT}]
    answer = json.loads((await chat(client, toy, messages=asking, max_tokens=500)).body)
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_summary_failures_leave_the_conversation_alone(
    toy: ToyUpstream, client: aiohttp.ClientSession
) -> None:
    toy.summary_failures.append(RawAnswer(status=503))
    asking = [HELLO, {"role": "user", "content": SOURCE_PROMPT}]
    assert (await chat(client, toy)).status == 200
    assert (await chat(client, toy, messages=asking)).status == 503
    assert (await chat(client, toy, messages=asking)).status == 200


async def test_anything_else_is_echoed_as_received(toy: ToyUpstream, client: aiohttp.ClientSession) -> None:
    async with client.put(f"{toy.root_url}/v2/x?a=1&b=%20c", data=b"\x00\xff") as response:
        echo = await response.json()
    assert (echo["method"], echo["path"]) == ("PUT", "/v2/x?a=1&b=%20c")
    assert base64.b64decode(echo["body"]) == b"\x00\xff" == toy.requests[0].body


async def test_given_answers_are_given(toy: ToyUpstream, client: aiohttp.ClientSession) -> None:
    headers = (("Content-Type", "text/plain"), ("X-Odd", "1"), ("X-Odd", "2"))
    toy.raw_answers["GET", "/v1/models"] = RawAnswer(status=418, headers=headers, pieces=(b"a", b"b"))
    async with client.get(f"{toy.base_url}/models?x=1") as response:
        assert (response.status, await response.read()) == (418, b"ab")
        assert response.headers.getall("X-Odd") == ["1", "2"]


async def test_compressed_requests_and_answers_are_understood(
    toy: ToyUpstream, client: aiohttp.ClientSession
) -> None:
    toy.delivery = Delivery(gzip=True, write_bytes=7)
    body = gzip.compress(json.dumps({"model": "m", "messages": [HELLO], "stream": True}).encode())
    headers = {"Content-Encoding": "gzip"}
    async with client.post(f"{toy.base_url}/chat/completions", data=body, headers=headers) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    assert toy.requests[0].body == body
    assert toy.requests[0].refusal is None


@pytest.mark.parametrize("ending", ["close", "abort"])
@pytest.mark.parametrize("stream", [True, False])
async def test_answers_break_off(
    toy: ToyUpstream, client: aiohttp.ClientSession, ending: Ending, stream: bool
) -> None:
    toy.delivery = Delivery(stop_after_bytes=100, ending=ending)
    answer = await chat(client, toy, stream=stream)
    assert answer.broken is not None and not answer.is_whole
    assert len(answer.body) <= 100


@pytest.mark.parametrize(
    "delivery",
    [Delivery(never=True), Delivery(ending="hang", stop_after_bytes=50), Delivery(between_writes_seconds=60)],
)
async def test_a_client_that_hangs_up_is_noticed(toy: ToyUpstream, delivery: Delivery) -> None:
    toy.delivery = delivery
    async with aiohttp.ClientSession() as impatient:
        asking = asyncio.create_task(chat(impatient, toy, stream=True))
        await wait_until(lambda: bool(toy.requests))
        asking.cancel()
    await wait_until(lambda: toy.requests[0].disconnected)
    assert not toy.requests[0].finished


async def test_a_malformed_chunk_goes_out_as_such(toy: ToyUpstream) -> None:
    toy.delivery = Delivery(ending="malformed")
    body = json.dumps({"model": "m", "messages": [HELLO], "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", toy.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: toy\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    received = await asyncio.wait_for(reader.readuntil(b"this is no chunk size\r\n"), 30)
    assert b"data: [DONE]" in received and b"\r\n0\r\n\r\n" not in received
    writer.close()
    await writer.wait_closed()


async def test_bodies_of_megabytes_go_through(toy: ToyUpstream, client: aiohttp.ClientSession) -> None:
    toy.window = 1_000_000
    message = {"role": "user", "content": "word " * 500_000}
    assert (await chat(client, toy, messages=[message])).is_whole
    assert len(toy.requests[0].body) > 2_000_000
