"""The toy upstream over its real socket, in each format: usage, refusals, what it holds, broken answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.shared_data import requires_shared
from tests.toy.agent import Shape, make_session, with_thinking
from tests.toy.chat import CHAT
from tests.toy.counting import TokenCounter
from tests.toy.delivery import Delivery, Ending, RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.economics import measure, prefix_breaks, sent_with_opening, simulate
from tests.toy.messages import MESSAGES, Messages
from tests.toy.reply import Reply, ToolCall, read_events
from tests.toy.responses import RESPONSES, Responses
from tests.toy.running import Answer, Pace, ask, run_session, wait_until
from tests.toy.summarising import SOURCE_PROMPT
from tests.toy.threads import find_thread_error
from tests.toy.transcripts import Limits, find_large, load_transcript
from tests.toy.upstream import ToyUpstream
from tests.toy.validity import STRICT

_FORMATS: list[Dialect] = [CHAT, RESPONSES, MESSAGES]
_HABITS: list[Dialect] = [
    *_FORMATS,
    Responses(typed=False),
    Responses(ids=False),
    Responses(history="references"),
    Responses(history="previous"),
    Messages(marks=False),
    Messages(plain=True),
    Messages(threads=True),
]
_HELLO = {"role": "user", "content": "Hello, please remember FACT-AAAA2222 and FACT-BBBB3333."}
_CALLS = tuple(ToolCall(id=call_id, name="look", arguments='{"path": "/srv/a"}') for call_id in ("a", "b"))
_FULL = Reply(text="I look. " * 20, thinking="What is there? " * 20, tool_calls=_CALLS)
_WORDS = make_session(25, 2, "many_users")
_TOOLS: dict[str, list[object]] = {
    "chat": [{"type": "function", "function": {"name": "look", "parameters": {}}}],
    "responses": [{"type": "function", "name": "look", "parameters": {}}],
    "messages": [{"name": "look", "input_schema": {"type": "object"}}],
}


@pytest.fixture
async def toy() -> AsyncIterator[ToyUpstream]:
    async with ToyUpstream(window=4_000) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    headers = Messages(threads=True).headers("sk-toy")
    async with aiohttp.ClientSession(headers=headers) as session:
        yield session


class Caller:
    """Asks in one format. `most` is the room for the reply."""

    def __init__(self, client: aiohttp.ClientSession, toy: ToyUpstream, dialect: Dialect) -> None:
        self.client, self.toy, self.dialect = client, toy, dialect
        self.name = dialect.path.split("/")[1]

    async def ask(self, most: int = 900, said: object = None, **fields: Any) -> Answer:
        names = ("input", "max_output_tokens") if self.name == "responses" else ("messages", "max_tokens")
        body = dict(zip(names, ([_HELLO] if said is None else said, most), strict=True))
        body |= {"model": "toy-model", "tools": _TOOLS[self.name]} | fields
        whole = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
        return await ask(self.client, f"{self.toy.base_url}{self.dialect.path}", whole)


@pytest.fixture(params=_FORMATS, ids=["chat", "responses", "messages"])
def caller(request: pytest.FixtureRequest, client: aiohttp.ClientSession, toy: ToyUpstream) -> Caller:
    return Caller(client, toy, request.param)


def read(answer: Answer) -> Any:
    return json.loads(answer.body)


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", _HABITS, ids=repr)
async def test_a_run_is_answered_and_its_sums_are_true(dialect: Dialect, stream: bool, thinks: bool) -> None:
    session = with_thinking(_WORDS) if thinks else _WORDS
    shape = Shape(dialect=dialect, max_tokens=2_100, stream=stream)
    async with ToyUpstream(bias=1.3) as toy:
        run = await run_session(session, toy.base_url, toy, shape)
    assert (run.failed, run.refusals, run.replays) == ([], [], ())
    assert prefix_breaks(run.prompts) == []
    assert all(sent_with_opening(run.prompts, session, shape))
    assert run.facts_lost([fact.token for fact in session.facts if fact.turn < 24]) == []
    ideal = simulate(measure(session, TokenCounter(1.3), shape), toy.window)
    assert [seen.prompt_tokens for seen in run.outgoing] == list(ideal.prompt_tokens)


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("dialect", [*_FORMATS, Responses(history="previous")], ids=repr)
async def test_past_the_window_each_request_of_a_run_is_refused(dialect: Dialect, in_stream: bool) -> None:
    async with ToyUpstream(window=12_000, bias=1.3) as toy:
        toy.refuses_in_stream = in_stream
        shape = Shape(dialect=dialect, max_tokens=1_000, stream=in_stream)
        run = await run_session(_WORDS, toy.base_url, toy, shape)
    answered = len(_WORDS) - len(run.refusals)
    assert 0 < answered < len(_WORDS)
    assert [answer.is_whole for answer in run.answers] == [True] * answered + [False] * len(run.refusals)
    assert set(run.statuses[answered:]) == ({200} if in_stream else {400})


async def test_a_request_fits_to_the_last_token_and_one_more_is_refused(caller: Caller) -> None:
    await caller.ask()
    size = caller.toy.requests[0].prompt_tokens
    fits, refused = await caller.ask(4_000 - size), await caller.ask(4_001 - size)
    assert (fits.status, refused.status) == (200, 400)
    words = {
        "chat": "maximum context length is 4000 tokens. However, you requested 4001 tokens",
        "responses": "Your input exceeds the context window of this model.",
        "messages": f"input length and `max_tokens` exceed context limit: {size} + {4_001 - size} > 4000",
    }
    assert words[caller.name] in read(refused)["error"]["message"]
    assert words[caller.name] in str(caller.toy.requests[2].refusal)


async def test_usage_is_what_the_toy_counted(caller: Caller) -> None:
    usage = read(await caller.ask())["usage"]
    asked = usage.get("prompt_tokens", usage.get("input_tokens"))
    said = usage.get("completion_tokens", usage.get("output_tokens"))
    assert asked == caller.toy.requests[0].prompt_tokens > 0
    assert said == caller.toy.counter.text("Understood.")


async def test_cached_tokens_are_a_part_of_those_that_the_toy_counted(
    toy: ToyUpstream, client: aiohttp.ClientSession
) -> None:
    marked = [{"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}}]
    talk = [_HELLO, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": marked}]
    usage = read(await Caller(client, toy, MESSAGES).ask(said=talk))["usage"]
    cached = (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"])
    assert min(cached) > 0
    assert usage["input_tokens"] + sum(cached) == toy.requests[0].prompt_tokens
    toy.reply = lambda _: Reply(text="Yes.", thinking="Hm.", cached_tokens=7)
    usage = read(await Caller(client, toy, RESPONSES).ask())["usage"]
    assert usage["input_tokens"] == toy.requests[1].prompt_tokens
    assert usage["input_tokens_details"] == {"cached_tokens": 7}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.parametrize("asked", [True, False])
async def test_a_chat_stream_has_a_usage_chunk_only_when_asked(
    toy: ToyUpstream, client: aiohttp.ClientSession, asked: bool
) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
    answer = await Caller(client, toy, CHAT).ask(stream=True, **options)
    lines = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
    assert answer.is_whole
    assert [line["choices"] == [] for line in lines].count(True) == int(asked)
    assert all(("usage" in line) == asked for line in lines)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_stops_at_the_requested_output(caller: Caller, stream: bool) -> None:
    caller.toy.reply = lambda _: Reply(text="many words " * 500)
    answer = await caller.ask(50, stream=stream)
    ends = {"chat": b'"length"', "responses": b'"max_output_tokens"', "messages": b'"max_tokens"'}
    assert answer.is_whole and ends[caller.name] in answer.body
    assert b"many words " * 60 not in answer.body


async def test_a_stream_of_messages_adds_up_to_the_whole_one(
    toy: ToyUpstream, client: aiohttp.ClientSession
) -> None:
    toy.reply = lambda _: _FULL
    thinking: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1_024}}
    events: list[Any] = read_events(
        (await Caller(client, toy, MESSAGES).ask(2_000, stream=True, **thinking)).body
    )
    whole = read(await Caller(client, toy, MESSAGES).ask(2_000, **thinking))
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    text = "".join(delta.get("text", "") for delta in deltas)
    arguments = "".join(delta.get("partial_json", "") for delta in deltas)
    assert (text, arguments) == (_FULL.text, "".join(call.arguments for call in _CALLS))
    assert events[0]["message"]["usage"] | events[-2]["usage"] == whole["usage"]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("dialect", "end"),
    [(RESPONSES, '"response.completed"'), (MESSAGES, '"message_stop"'), (CHAT, "[DONE]")],
    ids=["responses", "messages", "chat"],
)
async def test_a_stream_that_ends_early_is_no_whole_answer(dialect: Dialect, end: str) -> None:
    async with ToyUpstream() as toy:
        shape = Shape(dialect=dialect, stream=True)
        (answer,) = (await run_session(_WORDS, toy.base_url, toy, shape, Pace(last=1))).answers
    body = b": keep-alive\n\n" + answer.body
    assert dialect.is_whole(body)
    last = body.rindex(end.encode()) + len(end)
    assert not any(dialect.is_whole(body[:length]) for length in [*range(0, last, 499), last - 1])


async def test_a_summary_repeats_every_fact_and_is_no_part_of_the_conversation(caller: Caller) -> None:
    asked = [{"role": "user", "content": f"FACT-AAAA2222 and FACT-BBBB3333. {SOURCE_PROMPT}."}]
    answer = await caller.ask(said=asked, tools=None)
    (summary,) = caller.toy.summaries
    assert caller.toy.chats == [] and summary.facts == ("FACT-AAAA2222", "FACT-BBBB3333")
    assert all(fact.encode() in answer.body for fact in summary.facts)
    usage = read(answer)["usage"]
    assert 600 < int(usage.get("completion_tokens") or usage["output_tokens"]) <= 900
    caller.toy.summary_failures.append(RawAnswer(status=503))
    assert (await caller.ask()).status == 200
    assert (await caller.ask(said=asked, tools=None)).status == 503


async def test_an_invalid_request_is_refused_and_a_queued_failure_comes_once(caller: Caller) -> None:
    assert (await caller.ask(said=[])).status == 400
    caller.toy.failures.append(RawAnswer(status=502))
    assert [(await caller.ask()).status for _ in range(2)] == [502, 200]


async def test_a_stored_response_is_continued_with_what_its_calls_gave(
    toy: ToyUpstream, client: aiohttp.ClientSession
) -> None:
    caller = Caller(client, toy, RESPONSES)
    toy.reply = lambda _: _FULL
    first = await caller.ask()
    outputs = [{"type": "function_call_output", "call_id": name, "output": "x"} for name in ("a", "b")]
    refused = await caller.ask(said=outputs[:1], previous_response_id=first.response_id)
    assert "No tool output found for function call b" in read(refused)["error"]["message"]
    toy.reply = lambda _: Reply(text="Done.")
    second = await caller.ask(said=outputs, previous_response_id=first.response_id)
    assert second.is_whole and toy.requests[2].prompt_tokens > toy.requests[0].prompt_tokens
    for name in ((await caller.ask(store=False)).response_id, "resp_never"):
        unknown = await caller.ask(said="And now?", previous_response_id=name)
        assert read(unknown)["error"]["code"] == "previous_response_not_found"


async def test_a_thread_is_continued_once_and_by_one_request_at_a_time(
    toy: ToyUpstream, client: aiohttp.ClientSession
) -> None:
    caller = Caller(client, toy, MESSAGES)
    first = await caller.ask(thread={"type": "create"}, system="Be brief.")
    go_on: dict[str, Any] = {
        "thread": {"type": "continue", "previous_message_id": first.response_id},
        "tools": None,
    }
    assert b"system" in (await caller.ask(**go_on, system="Be kind.")).body
    toy.delivery = Delivery(after=asyncio.Event())
    waiting = asyncio.create_task(caller.ask(**go_on))
    await wait_until(lambda: len(toy.requests) == 3)
    assert find_thread_error((await caller.ask(**go_on)).body) == "thread_continue_in_flight"
    assert toy.delivery.after is not None
    toy.delivery.after.set()
    assert (await waiting).is_whole
    assert toy.requests[2].prompt_tokens > toy.requests[0].prompt_tokens
    assert find_thread_error((await caller.ask(**go_on)).body) == "thread_already_continued"
    toy.memory.threads.forget()
    lost = await caller.ask(**go_on)
    assert (lost.status, find_thread_error(lost.body)) == (404, "thread_not_found")


@pytest.mark.parametrize("ending", ["close", "abort"])
async def test_answers_break_off(caller: Caller, ending: Ending) -> None:
    caller.toy.delivery = Delivery(stop_after_bytes=100, ending=ending)
    answer = await caller.ask(stream=True)
    assert not answer.is_whole and len(answer.body) <= 100


@pytest.mark.parametrize(
    "delivery",
    [Delivery(never=True), Delivery(ending="hang", stop_after_bytes=50), Delivery(between_writes_seconds=60)],
)
async def test_a_client_that_hangs_up_is_noticed(toy: ToyUpstream, delivery: Delivery) -> None:
    toy.delivery = delivery
    async with aiohttp.ClientSession() as impatient:
        asking = asyncio.create_task(Caller(impatient, toy, CHAT).ask(stream=True))
        await wait_until(lambda: bool(toy.requests))
        asking.cancel()
    await wait_until(lambda: toy.requests[0].disconnected)
    assert not toy.requests[0].finished


@requires_shared
@pytest.mark.parametrize("dialect", [*_FORMATS, Responses(typed=False, ids=False)], ids=repr)
def test_recorded_sessions_are_valid_at_every_length(dialect: Dialect) -> None:
    files = find_large()
    assert len(files) == 19
    for file in files:
        session = with_thinking(load_transcript(file, Limits(messages=120, text_chars=20_000)))
        steps = {*range(0, len(session), 20), len(session) - 1}
        bodies = [session.envelope(turn, Shape(dialect=dialect)) for turn in steps]
        assert {dialect.find_violation(body, dialect.headers("k"), STRICT) for body in bodies} == {None}, file
