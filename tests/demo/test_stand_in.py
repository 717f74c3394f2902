"""The stand-in for a model."""

import json

import aiohttp
import pytest

from gateway.demo.stand_in import MODEL, StandIn, choose_reply, count_tokens
from gateway.wire.model_list import parse_model_list
from tests.toy.reply import read_events

TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {}}}]


def ask(text: str, **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


async def post(url: str, body: object) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{url}/chat/completions", data=json.dumps(body)) as response,
    ):
        return response.status, await response.read()


async def test_a_prompt_that_does_not_fit_is_refused_as_openai_refuses_it() -> None:
    fitting, larger = ask("x" * 384), ask("x" * 388)
    assert (count_tokens(fitting), count_tokens(larger)) == (100, 101)
    async with StandIn(100) as model:
        assert (await post(model.base_url, fitting))[0] == 200
        assert (await post(model.base_url, fitting | {"max_tokens": 1}))[0] == 400
        status, body = await post(model.base_url, larger)
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 100 tokens" in error["message"] and "101 tokens" in error["message"]


@pytest.mark.parametrize("body", [[], {}, {"messages": 1}, {"messages": ["x"]}, {"messages": [], "n": 1}])
async def test_what_is_no_request_is_refused(body: object) -> None:
    async with StandIn() as model:
        assert (await post(model.base_url, body))[0] == 400


async def test_it_names_its_window_in_its_list_of_models() -> None:
    async with (
        StandIn(9_000) as model,
        aiohttp.ClientSession() as client,
        client.get(f"{model.base_url}/models") as response,
    ):
        assert parse_model_list(await response.read())[MODEL].context == 9_000


async def test_a_stream_says_the_same_as_a_response() -> None:
    body = ask("Next file: src/part_02.py", tools=TOOLS)
    async with StandIn() as model:
        whole = json.loads((await post(model.base_url, body))[1])
        streamed = (await post(model.base_url, body | {"stream": True}))[1]
        assert model.last_prompt == (1, count_tokens(body))
    events = read_events(streamed)
    assert streamed.endswith(b"data: [DONE]\n\n")
    deltas = [choice["delta"] for event in events for choice in event["choices"]]  # type: ignore[attr-defined]
    (call,) = deltas[0].pop("tool_calls")
    assert call.pop("index") == 0
    message = whole["choices"][0]["message"]
    assert {**deltas[0], "tool_calls": [call]} == message
    assert events[-1]["usage"] == whole["usage"]


def test_it_knows_what_its_prompt_holds_and_no_more() -> None:
    seen = [
        {"role": "assistant", "content": "Finding 1: a\nFinding 2: b"},
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": "Finding 2: b\nFinding 3: c\nThis was the last file.",
        },
    ]
    answer = choose_reply(seen, has_tools=True)
    assert answer["content"].splitlines()[1:] == ["Finding 1: a", "Finding 2: b", "Finding 3: c"]
    assert "tool_calls" not in answer


def test_a_summary_has_the_headings_that_are_asked_for() -> None:
    seen = [
        {"role": "assistant", "content": "Finding 1: a"},
        {
            "role": "user",
            "content": "## Earlier\nUse these headings:\n## Goal\nWhat for.\n## Done\n## Open\nAll.",
        },
    ]
    lines = str(choose_reply(seen, has_tools=False)["content"]).splitlines()
    assert lines[0] == "## Goal" and lines[1].startswith("Review the storage layer")
    assert lines[2:] == ["## Done", "Finding 1: a", "## Open", "None"]


def test_it_calls_its_tool_only_if_it_has_one() -> None:
    messages = [{"role": "user", "content": "Next file: src/part_07.py"}]
    (call,) = choose_reply(messages, has_tools=True)["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"path": "src/part_07.py"}
    assert "tool_calls" not in choose_reply(messages, has_tools=False)
