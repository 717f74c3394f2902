"""Which conversation a request belongs to, as its response names it, and threads that nobody here has seen.

A conversation goes on where its newest answered request is continued. What leaves it is a branch.
"""

import json
from typing import Any

import pytest

from tests.toy.raw import Got, render_answer, render_request, writing
from tests.toy.wire import CHAT_PATH, MESSAGES_PATH, Wire, make_chat, opening_wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

Messages = list[dict[str, Any]]
WINDOW = 4_000
WIRE_MORE = f"""\
models:
  - {{match: "m", context: {WINDOW}}}
  - {{match: "by-hand", context: {WINDOW}, policy: manual}}
policies: {{manual: {{compaction: {{auto: false}}}}}}
"""
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
USAGE = {"prompt_tokens": 50, "completion_tokens": 5}
OPENING: Messages = [{"role": "user", "content": "Fix the parser."}]


def go_on(messages: Messages, wish: str = "More.", reply: str = "Done.") -> Messages:
    return [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": wish}]


class Caller:
    """With a key of its own."""

    def __init__(self, wire: Wire, key: str) -> None:
        self.wire = wire
        self.headers = [("Authorization", f"Bearer sk-{key}")]
        answer = {"choices": [{"message": {"role": "assistant", "content": "Done."}}], "usage": USAGE}
        wire.upstream.script = writing(render_answer(json.dumps(answer).encode()))

    async def ask(self, messages: Messages, **fields: object) -> str:
        """The conversation that the answer names."""
        body = make_chat(**({"messages": messages, "tools": TOOLS} | fields))
        got = await self.wire.ask(render_request(CHAT_PATH, body, self.headers))
        await self.wire.product.at_rest()
        return got.own("conversation") or ""


async def test_a_conversation_keeps_its_name_through_retries_and_turns(wire: Wire) -> None:
    caller = Caller(wire, "keeps")
    first = await caller.ask(OPENING)
    again = await caller.ask(OPENING)
    second = await caller.ask(go_on(OPENING))
    third = await caller.ask(go_on(go_on(OPENING)))
    assert first == again == second == third != ""


async def test_the_same_opening_has_the_same_name_in_another_process() -> None:
    found = set()
    for messages in (OPENING, go_on(OPENING)):
        async with opening_wire() as wire:
            found.add(await Caller(wire, "same").ask(messages))
    assert len(found) == 1


async def test_the_second_request_that_goes_on_from_one_place_is_a_branch(wire: Wire) -> None:
    caller = Caller(wire, "branch")
    first = await caller.ask(OPENING)
    assert await caller.ask(go_on(OPENING, "More.")) == first
    other = await caller.ask(go_on(OPENING, "Something else."))
    assert other != first
    # Both go on as what they are.
    assert await caller.ask(go_on(go_on(OPENING, "Something else."))) == other
    assert await caller.ask(go_on(go_on(OPENING, "More."))) == first


@pytest.mark.parametrize(
    ("wish", "fields"),
    [
        ("Title?", {"tools": []}),
        ("Provide a detailed prompt for continuing our conversation above.", {}),
        ("Your task is to create a detailed summary of the conversation so far.", {"tools": []}),
    ],
)
async def test_a_side_call_takes_no_place_in_the_conversation(
    wire: Wire, wish: str, fields: dict[str, object]
) -> None:
    """With other tools, or the client's own summary: the next request has the place."""
    caller = Caller(wire, wish.partition(" ")[0])
    first = await caller.ask(OPENING)
    assert await caller.ask(go_on(OPENING, wish), **fields) != first
    assert await caller.ask(go_on(OPENING)) == first


async def test_a_side_call_over_the_very_same_messages_is_no_retry(wire: Wire) -> None:
    caller = Caller(wire, "very-same")
    first = await caller.ask(OPENING)
    assert await caller.ask(OPENING, tools=[]) != first


async def test_an_answer_that_failed_or_broke_off_teaches_nothing(wire: Wire) -> None:
    """A request that was not answered well has no conversation that operators could see."""
    for number, script in enumerate(
        (
            writing(render_answer(b'{"usage":{}}', line="HTTP/1.1 500 No")),
            writing(
                render_answer(b'{"usage":{"prompt_tokens":50,"completion_tokens":5}}', line="HTTP/1.1 401 No")
            ),
            writing(render_answer(b'{"error":{"message":"no"},"usage":{"prompt_tokens":50}}')),
            writing(render_answer(b'{"choices":[]} ' * 9)[:-9], then="close"),
        )
    ):
        caller = Caller(wire, f"failed-{number}")
        wire.upstream.script = script
        first = await caller.ask(OPENING)
        again = Caller(wire, f"failed-{number}")
        # Nobody has answered it, so there is no place to leave.
        assert await again.ask(go_on(OPENING, "Something else.")) == first
        assert await again.ask(go_on(OPENING, "And else.")) != first


def continued(name: str, text: str = "on", model: str = "m", kind: str = "continue") -> bytes:
    thread = {"type": kind, "previous_message_id": name}
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": model, "max_tokens": 9, "messages": messages, "thread": thread}).encode()


async def send_thread(wire: Wire, body: bytes, name: str, tokens: int, path: str = MESSAGES_PATH) -> Got:
    """name, tokens: of the answer."""
    usage = {"input_tokens": tokens, "output_tokens": 10}
    message = {"type": "message", "id": name, "role": "assistant", "content": [], "usage": usage}
    wire.upstream.script = writing(render_answer(json.dumps(message).encode()))
    got = await wire.ask(render_request(path, body, [("x-api-key", "sk-threads")]))
    await wire.product.at_rest()
    return got


def read_code(got: Got) -> tuple[int, str]:
    return got.status, json.loads(got.body)["error"]["details"]["error_code"]


async def test_an_unknown_thread_passes_until_the_upstream_refuses_it(wire: Wire) -> None:
    """Only the upstream knows how large it is."""
    bodies = [
        continued("msg_a1", "x" * 600),
        continued("msg_a2", "x" * 600),
        continued("msg_a3", "x" * 30_000),
    ]
    for number, body in enumerate(bodies, 2):
        assert (await send_thread(wire, body, f"msg_a{number}", WINDOW - 10)).status == 200
    assert [seen.body for seen in wire.upstream.received] == bodies


async def test_an_overflow_of_an_unknown_thread_becomes_the_error_of_a_lost_one(wire: Wire) -> None:
    """Then its SDK sends the whole history."""
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}
    wire.upstream.script = writing(render_answer(json.dumps(error).encode(), line="HTTP/1.1 400 No"))
    got = await wire.ask(render_request(MESSAGES_PATH, continued("msg_c1"), [("x-api-key", "sk-c")]))
    assert read_code(got) == (404, "thread_not_found")
    assert [seen.body for seen in wire.upstream.received] == [continued("msg_c1")]


async def test_without_compaction_every_refusal_of_a_thread_passes(wire: Wire) -> None:
    error = b'{"error":{"message":"prompt is too long"}}'
    wire.upstream.script = writing(render_answer(error, line="HTTP/1.1 400 No"))
    body = continued("msg_d1", model="by-hand")
    got = await wire.ask(render_request(MESSAGES_PATH, body, [("x-api-key", "sk-threads")]))
    assert (got.status, got.body) == (400, error)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"model":"m","messages":[],"thread":{"type":"fork","of":"msg_1"}}', MESSAGES_PATH),
        (b'{"model":"m","input":"x","previous_response_id":"resp_1"}', "/v1/responses"),
        (b'{"model":"m","input":"x","conversation":"conv_1"}', "/v1/responses"),
        (continued("msg_e1").replace(b'"on"', b'"on'), MESSAGES_PATH),
        (continued("msg_e2").replace(b'"role"', b'"rule"'), MESSAGES_PATH),
    ],
)
async def test_what_no_client_sends_again_in_full_passes_with_whatever_is_answered(
    wire: Wire, body: bytes, path: str
) -> None:
    error = b'{"error":{"message":"prompt is too long: 9 tokens > 8 maximum"}}'
    wire.upstream.script = writing(render_answer(error, line="HTTP/1.1 400 No"))
    got = await wire.ask(render_request(path, body))
    assert (got.status, got.body) == (400, error)
    assert [seen.body for seen in wire.upstream.received] == [body]
