"""The toy's Messages over its real socket: events, usage, refusals and token counts."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.toy.messages import MESSAGES
from tests.toy.refusal import Refusal
from tests.toy.reply import Reply, ToolCall, read_events
from tests.toy.running import Answer, ask
from tests.toy.upstream import ToyUpstream

HELLO = {"role": "user", "content": "Hello, please remember FACT-AAAA2222."}
MARKED = [{"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}}]
TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]
CALLS = tuple(ToolCall(id=call_id, name="look", arguments='{"path": "/srv/a.py"}') for call_id in ("a", "b"))
FULL = Reply(text="I look. " * 20, thinking="What is there? " * 20, tool_calls=CALLS)
THINKING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1_024}, "max_tokens": 2_000}
Client = aiohttp.ClientSession


@pytest.fixture
async def toy() -> AsyncIterator[ToyUpstream]:
    async with ToyUpstream(window=4_000) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(headers=MESSAGES.headers("sk-toy")) as session:
        yield session


async def say(client: Client, toy: ToyUpstream, path: str = "/messages", **fields: object) -> Answer:
    body = {"model": "toy-model", "max_tokens": 900, "messages": [HELLO], "tools": TOOLS} | fields
    return await ask(client, f"{toy.base_url}{path}", json.dumps(body).encode())


def read(answer: Answer) -> Any:
    return json.loads(answer.body)


def assemble(events: list[Any]) -> list[Any]:
    """Content blocks, as a client puts them together."""
    blocks: list[Any] = []
    for event in events:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(blocks)
                blocks.append(dict(block) | {"json": ""})
            case {"type": "content_block_delta", "delta": {"type": kind, **pieces}}:
                key, piece = next(iter(pieces.items()))
                target = "json" if kind == "input_json_delta" else key
                blocks[-1][target] += piece
    given = [block | ({"input": json.loads(block["json"])} if block["json"] else {}) for block in blocks]
    return [{key: value for key, value in block.items() if key != "json"} for block in given]


async def test_a_stream_builds_up_the_same_message(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: FULL
    events: list[Any] = read_events((await say(client, toy, stream=True, **THINKING)).body)
    whole = read(await say(client, toy, **THINKING))
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert assemble(events) == whole["content"]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"] and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"
    begun, ended = events[0]["message"]["usage"], events[-2]["usage"]
    assert begun | ended == whole["usage"]


async def test_thinking_is_sent_only_if_requested(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: FULL
    assert [block["type"] for block in read(await say(client, toy))["content"]] == [
        "text",
        "tool_use",
        "tool_use",
    ]


async def test_usage_adds_up_to_what_the_toy_counted(toy: ToyUpstream, client: Client) -> None:
    plain = read(await say(client, toy))["usage"]
    assert plain["input_tokens"] == toy.requests[0].prompt_tokens > 0
    talk = [HELLO, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": MARKED}]
    marked = read(await say(client, toy, messages=talk))["usage"]
    cached = (marked["cache_read_input_tokens"], marked["cache_creation_input_tokens"])
    assert min(cached) > 0
    assert marked["input_tokens"] + sum(cached) == toy.requests[1].prompt_tokens
    first = read(await say(client, toy, messages=[talk[2]]))["usage"]
    assert (first["cache_read_input_tokens"], first["cache_creation_input_tokens"] > 0) == (0, True)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_stops_at_the_requested_output(toy: ToyUpstream, client: Client, stream: bool) -> None:
    toy.reply = lambda _: Reply(text="many words " * 500)
    answer = await say(client, toy, max_tokens=50, stream=stream)
    events: Any = read_events(answer.body)
    stop = events[-2]["delta"]["stop_reason"] if stream else read(answer)["stop_reason"]
    usage = events[-2]["usage"] if stream else read(answer)["usage"]
    assert (stop, usage["output_tokens"] <= 50, answer.is_whole) == ("max_tokens", True, True)


async def test_over_the_window_is_refused_in_anthropics_words(toy: ToyUpstream, client: Client) -> None:
    size = MESSAGES.count(toy.counter, {"messages": [HELLO], "tools": TOOLS})
    fits = await say(client, toy, max_tokens=4_000 - size)
    refused = await say(client, toy, max_tokens=4_001 - size)
    assert (fits.status, refused.status) == (200, 400)
    words = f"input length and `max_tokens` exceed context limit: {size} + {4_001 - size} > 4000"
    assert read(refused)["error"]["message"].startswith(words)
    long = await say(client, toy, messages=[{"role": "user", "content": "word " * 8_000}])
    assert read(long)["type"] == "error"
    assert read(long)["error"]["type"] == "invalid_request_error"
    size = toy.requests[-1].prompt_tokens
    assert read(long)["error"]["message"] == f"prompt is too long: {size} tokens > 4000 maximum"


async def test_a_refused_stream_may_have_begun(toy: ToyUpstream, client: Client) -> None:
    toy.refuses_in_stream = True
    answer = await say(client, toy, stream=True, messages=[{"role": "user", "content": "word " * 8_000}])
    error: Any = read_events(answer.body)[-1]
    assert (answer.status, answer.is_whole, error["type"]) == (200, False, "error")
    assert error["error"]["message"].startswith("prompt is too long")


async def test_a_request_without_its_version_is_refused(toy: ToyUpstream) -> None:
    async with aiohttp.ClientSession() as client:
        assert "anthropic-version" in read(await say(client, toy))["error"]["message"]


async def test_tokens_are_counted_by_the_toys_own_counting(toy: ToyUpstream, client: Client) -> None:
    long = [{"role": "user", "content": "word " * 8_000}]
    counted = await say(client, toy, "/messages/count_tokens", messages=long)
    await say(client, toy, messages=long)
    assert read(counted) == {"input_tokens": toy.requests[1].prompt_tokens}
    assert toy.requests[1].prompt_tokens > toy.window
    assert [seen.is_chat for seen in toy.requests] == [False, True]
    refused = await say(client, toy, "/messages/count_tokens", messages=[])
    assert (refused.status, read(refused)["type"]) == (400, "error")


async def test_errors_are_queued_in_the_words_of_the_format(toy: ToyUpstream, client: Client) -> None:
    toy.failures.append(MESSAGES.refuse(Refusal(message="Overloaded", kind="overloaded_error", status=529)))
    busy = await say(client, toy)
    assert (busy.status, read(busy)["error"]) == (529, {"type": "overloaded_error", "message": "Overloaded"})
    assert (await say(client, toy)).is_whole
