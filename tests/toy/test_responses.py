"""The toy's Responses over its real socket: events, stored items and refusals."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.toy.delivery import RawAnswer
from tests.toy.refusal import Refusal
from tests.toy.reply import Reply, ToolCall, read_events
from tests.toy.responses import RESPONSES
from tests.toy.running import Answer, ask
from tests.toy.upstream import ToyUpstream

HELLO = {"role": "user", "content": "Hello, please remember FACT-AAAA2222."}
TOOLS = [{"type": "function", "name": "look", "parameters": {}}]
CALLS = tuple(ToolCall(id=call_id, name="look", arguments='{"path": "/srv/a.py"}') for call_id in ("a", "b"))
FULL = Reply(text="I look. " * 20, thinking="What is there? " * 20, tool_calls=CALLS)
SECRETS = {"include": ["reasoning.encrypted_content"]}
Client = aiohttp.ClientSession


@pytest.fixture
async def toy() -> AsyncIterator[ToyUpstream]:
    async with ToyUpstream(window=4_000) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        yield session


async def respond(client: Client, toy: ToyUpstream, **fields: object) -> Answer:
    body = json.dumps({"model": "toy-model", "input": [HELLO], "tools": TOOLS} | fields).encode()
    return await ask(client, f"{toy.base_url}/responses", body)


def read(answer: Answer) -> Any:
    return json.loads(answer.body)


def output(call_id: str) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": call_id, "output": "FACT-BBBB3333"}


async def test_the_events_of_a_stream_add_up_to_its_last_response(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: FULL
    answer = await respond(client, toy, stream=True, **SECRETS)
    events: list[Any] = read_events(answer.body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call"]
    deltas_of = {event["item_id"] for event in events if "delta" in event}
    assert deltas_of == {item["id"] for item in done}
    deltas = {kind: "".join(e["delta"] for e in events if e["type"] == kind) for kind in DELTAS}
    assert list(deltas.values()) == [FULL.text, (CALLS[0].arguments * 2), done[0]["summary"][0]["text"]]


DELTAS = (
    "response.output_text.delta",
    "response.function_call_arguments.delta",
    "response.reasoning_summary_text.delta",
)


async def test_streamed_or_not_it_is_the_same_response(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: FULL
    streamed: Any = read_events((await respond(client, toy, stream=True)).body)[-1]["response"]
    whole = read(await respond(client, toy))
    named = [[item | {"id": ""} for item in response["output"]] for response in (streamed, whole)]
    assert named[0] == named[1]
    assert streamed["usage"] == whole["usage"]


async def test_usage_is_what_the_toy_counted(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: Reply(text="Yes.", thinking="Hm.", cached_tokens=7)
    usage = read(await respond(client, toy))["usage"]
    assert usage["input_tokens"] == toy.requests[0].prompt_tokens > 0
    assert usage["input_tokens_details"] == {"cached_tokens": 7}
    assert usage["output_tokens_details"] == {"reasoning_tokens": toy.counter.text("Hm.")}
    assert usage["output_tokens"] == toy.counter.text("Hm.") + toy.counter.text("Yes.")
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_stops_at_the_requested_output(toy: ToyUpstream, client: Client, stream: bool) -> None:
    toy.reply = lambda _: Reply(text="many words " * 500)
    answer = await respond(client, toy, max_output_tokens=50, stream=stream)
    final: Any = read_events(answer.body)[-1]["response"] if stream else read(answer)
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert final["usage"]["output_tokens"] <= 50
    assert answer.is_whole and answer.response_id is None


async def test_over_the_window_is_refused_in_openais_words(toy: ToyUpstream, client: Client) -> None:
    prompt_tokens = RESPONSES.count(toy.counter, {"input": [HELLO], "tools": TOOLS})
    fits = await respond(client, toy, max_output_tokens=4_000 - prompt_tokens)
    refused = await respond(client, toy, max_output_tokens=4_001 - prompt_tokens)
    error = read(refused)["error"]
    assert (fits.status, refused.status) == (200, 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert error["message"].startswith("Your input exceeds the context window of this model.")


async def test_a_refused_stream_may_have_begun(toy: ToyUpstream, client: Client) -> None:
    toy.refuses_in_stream = True
    answer = await respond(client, toy, stream=True, input="x" * 40_000)
    failed: Any = read_events(answer.body)[-1]
    assert (answer.status, answer.is_whole, failed["type"]) == (200, False, "response.failed")
    assert failed["response"]["error"]["code"] == "context_length_exceeded"


async def test_a_stored_response_can_be_continued(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: FULL
    first = await respond(client, toy)
    toy.reply = lambda _: Reply(text="Done.")
    second = await respond(
        client, toy, input=[output("a"), output("b")], previous_response_id=first.response_id, stream=True
    )
    third = await respond(client, toy, input="And now?", previous_response_id=second.response_id)
    assert third.is_whole and [seen.refusal for seen in toy.requests] == [None] * 3
    items: Any = toy.requests[2].whole["input"]
    kinds = [item["type"] for item in items[1:]]
    assert kinds == [
        "reasoning",
        "message",
        *["function_call"] * 2,
        *["function_call_output"] * 2,
        "message",
        "message",
    ]
    assert toy.requests[2].prompt_tokens > toy.requests[1].prompt_tokens > toy.requests[0].prompt_tokens


async def test_calls_of_the_answer_before_are_to_be_answered(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: FULL
    first = await respond(client, toy)
    refused = await respond(client, toy, input=[output("a")], previous_response_id=first.response_id)
    assert "No tool output found for function call b" in read(refused)["error"]["message"]


async def test_a_reference_to_an_unstored_response_is_refused(toy: ToyUpstream, client: Client) -> None:
    kept = await respond(client, toy, store=False)
    for response_id in (kept.response_id, "resp_never"):
        refused = await respond(client, toy, input="And now?", previous_response_id=response_id)
        error = read(refused)["error"]
        assert (refused.status, error["code"]) == (400, "previous_response_not_found")
        assert error["param"] == "previous_response_id"


async def test_items_are_referred_to_by_their_ids(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: Reply(text="I am ready.", thinking="Hm.", mark="1")
    await respond(client, toy)
    references = [{"type": "item_reference", "id": name} for name in ("rs_1", "msg_1")]
    assert (await respond(client, toy, input=[HELLO, *references, HELLO])).status == 200
    bare = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert (await respond(client, toy, input=[HELLO, bare, references[1], HELLO])).status == 200
    unknown = await respond(client, toy, input=[HELLO, {"type": "item_reference", "id": "msg_2"}])
    assert (unknown.status, "'msg_2' not found" in read(unknown)["error"]["message"]) == (404, True)


async def test_an_item_with_its_id_needs_the_reasoning_that_led_to_it(
    toy: ToyUpstream, client: Client
) -> None:
    toy.reply = lambda _: Reply(text="I am ready.", thinking="Hm.", mark="1")
    reasoning, said = read(await respond(client, toy, store=False, **SECRETS))["output"]
    assert (await respond(client, toy, input=[HELLO, reasoning, said, HELLO], store=False)).status == 200
    nameless = {key: value for key, value in said.items() if key != "id"}
    assert (await respond(client, toy, input=[HELLO, nameless, HELLO], store=False)).status == 200
    refused = read(await respond(client, toy, input=[HELLO, said, HELLO], store=False))["error"]["message"]
    assert refused == "Item 'msg_1' was provided without its required 'reasoning' item: 'rs_1'."


async def test_encrypted_reasoning_is_sent_only_if_requested(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: FULL
    assert "encrypted_content" not in read(await respond(client, toy))["output"][0]
    assert read(await respond(client, toy, **SECRETS))["output"][0]["encrypted_content"]


async def test_errors_are_queued_in_the_words_of_the_format(toy: ToyUpstream, client: Client) -> None:
    busy = Refusal(message="Overloaded", kind="server_error", code="server_error", status=503)
    toy.failures += [RESPONSES.refuse(busy), RawAnswer(status=502)]
    assert read(await respond(client, toy))["error"]["message"] == "Overloaded"
    assert [(await respond(client, toy)).status for _ in range(2)] == [502, 200]


async def test_a_conversation_grows_by_what_is_said_in_it(toy: ToyUpstream, client: Client) -> None:
    body = json.dumps({"items": [HELLO]}).encode()
    name = read(await ask(client, f"{toy.base_url}/conversations", body))["id"]
    more = {"role": "user", "content": "And now?"}
    toy.reply = lambda _: Reply(text="Said.")
    for conversation in (name, {"id": name}):
        assert (await respond(client, toy, conversation=conversation, input=[more])).is_whole
    said: Any = [item.get("content") for item in toy.chats[-1].whole["input"]]  # type: ignore[attr-defined]
    assert [said[0], said[1], said[3]] == [HELLO["content"], "And now?", "And now?"]
    assert len(said) == 4 and said[2][0]["text"] == "Said."
    refused = await respond(client, toy, conversation="conv_unknown")
    assert refused.status == 404
    both = await respond(client, toy, conversation=name, previous_response_id="resp_1")
    assert both.status == 400
