"""The same session in every format: the same talk, the same sums, and never a broken rule."""

import json
from typing import Any

import aiohttp
import pytest

from tests.shared_data import requires_shared
from tests.toy.agent import Session, Shape, make_session, with_thinking
from tests.toy.chat import CHAT
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Dialect, Since
from tests.toy.dialects import find_dialect
from tests.toy.economics import measure, prefix_breaks, prefix_reuse, sent_with_opening, simulate
from tests.toy.messages import MESSAGES, Messages
from tests.toy.responses import RESPONSES, Responses
from tests.toy.running import Pace, ask, run_session
from tests.toy.summarising import SOURCE_PROMPT, find_facts, has_summary_prompt
from tests.toy.transcripts import Limits, find_large, load_transcript
from tests.toy.upstream import ToyUpstream
from tests.toy.validity import STRICT

HABITS: list[Dialect] = [
    CHAT,
    RESPONSES,
    Responses(typed=False),
    Responses(ids=False),
    Responses(history="references"),
    Responses(history="previous"),
    MESSAGES,
    Messages(marks=False),
    Messages(plain=True),
]
WORDS = make_session(25, 2, "many_users")
SESSIONS = [WORDS, with_thinking(WORDS)]


def name(value: object) -> str:
    return "thinking" if value is SESSIONS[1] else "plain" if value is WORDS else repr(value)


@pytest.mark.parametrize("session", SESSIONS, ids=name)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", HABITS, ids=name)
async def test_a_run_is_answered_and_its_sums_are_true(
    dialect: Dialect, stream: bool, session: Session
) -> None:
    shape = Shape(dialect=dialect, max_tokens=2_100, stream=stream)
    async with ToyUpstream(bias=1.3) as toy:
        run = await run_session(session, toy.base_url, toy, shape)
    assert run.failed == []
    assert run.refusals == []
    assert prefix_breaks(run.prompts) == []
    assert prefix_reuse(run.prompts) > 0.9
    assert all(sent_with_opening(run.prompts, session, shape))
    assert run.facts_lost([fact.token for fact in session.facts if fact.turn < 24]) == []
    ideal = simulate(measure(session, TokenCounter(1.3), shape), toy.window)
    assert [seen.prompt_tokens for seen in run.outgoing] == list(ideal.prompt_tokens)


@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES, Responses(history="previous")], ids=name)
async def test_past_the_window_a_run_is_refused(dialect: Dialect) -> None:
    async with ToyUpstream(window=12_000, bias=1.3) as toy:
        run = await run_session(WORDS, toy.base_url, toy, Shape(dialect=dialect, max_tokens=1_000))
    answered = run.statuses.index(400)
    assert 0 < answered < 25
    assert [position for position, *_ in run.failed] == list(range(answered, 25))
    assert len(run.refusals) == 25 - answered


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=name)
async def test_a_refusal_within_a_stream_is_no_whole_answer(dialect: Dialect) -> None:
    shape = Shape(dialect=dialect, max_tokens=1_000, stream=True)
    async with ToyUpstream(window=4_000) as toy:
        toy.refuses_in_stream = True
        run = await run_session(WORDS, toy.base_url, toy, shape)
    answered = len(WORDS) - len(run.refusals)
    assert set(run.statuses) == {200}
    assert [answer.is_whole for answer in run.answers] == [True] * answered + [False] * len(run.refusals)
    assert 0 < answered < len(WORDS)


@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES], ids=name)
def test_the_same_material_weighs_about_the_same_in_every_format(dialect: Dialect) -> None:
    counter, session = TokenCounter(), SESSIONS[1]
    chat, other = (measure(session, counter, Shape(dialect=d)) for d in (CHAT, dialect))
    assert other.floor_tokens == pytest.approx(chat.floor_tokens, rel=0.1)
    assert sum(other.groups) == pytest.approx(sum(chat.groups), rel=0.02)


@pytest.mark.parametrize("dialect", HABITS[:4] + HABITS[6:], ids=name)
def test_facts_are_seen_in_every_format(dialect: Dialect) -> None:
    shape = Shape(dialect=dialect)
    assert set(find_facts(WORDS.envelope(25, shape))) == {fact.token for fact in WORDS.facts}


SUMMARY_REQUESTS: list[tuple[Dialect, dict[str, object]]] = [
    (CHAT, {"messages": [{"role": "user", "content": ""}], "max_tokens": 900}),
    (RESPONSES, {"input": [{"role": "user", "content": ""}], "max_output_tokens": 900, "store": False}),
    (RESPONSES, {"input": "", "instructions": "Summarise.", "max_output_tokens": 900}),
    (MESSAGES, {"messages": [{"role": "user", "content": ""}], "system": "Summarise.", "max_tokens": 900}),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}], "max_tokens": 900},
    ),
]


@pytest.mark.parametrize(("dialect", "request_"), SUMMARY_REQUESTS)
async def test_a_summary_is_asked_for_and_given_in_every_format(
    dialect: Dialect, request_: dict[str, object]
) -> None:
    text = f"FACT-AAAA2222 and FACT-BBBB3333. {SOURCE_PROMPT}."
    rendered = json.dumps({"model": "toy-model"} | request_).replace('": ""', f'": "{text}"')
    body = json.loads(rendered)
    assert has_summary_prompt(body)
    assert not has_summary_prompt(body | {"tools": [{}]})
    async with ToyUpstream() as toy, aiohttp.ClientSession(headers=dialect.headers("k")) as client:
        answer = await ask(client, f"{toy.base_url}{dialect.path}", rendered.encode())
    assert answer.is_whole and toy.chats == []
    assert toy.summaries[0].facts == ("FACT-AAAA2222", "FACT-BBBB3333")
    assert all(fact.encode() in answer.body for fact in toy.summaries[0].facts)
    assert 600 < read_output_tokens(answer.body) <= 900


def read_output_tokens(body: bytes) -> int:
    usage = json.loads(body)["usage"]
    return int(usage.get("completion_tokens") or usage["output_tokens"])


def test_a_path_identifies_its_format() -> None:
    assert find_dialect("http://x/v1/messages?beta=true") is MESSAGES
    assert find_dialect("/v1/responses") is RESPONSES
    assert find_dialect("/v1/messages/count_tokens") is None


def messages_of(envelope: dict[str, Any]) -> Any:
    return envelope["messages"]


def test_claude_codes_mark_is_on_the_system_prompt_and_the_newest_block() -> None:
    envelopes = [WORDS.envelope(turn, Shape(dialect=MESSAGES)) for turn in (3, 4)]
    for envelope in envelopes:
        assert json.dumps(envelope).count("cache_control") == 2
        newest = messages_of(envelope)[-1]["content"][-1]
        assert newest["cache_control"] == {"type": "ephemeral"}


def test_a_plain_client_sends_strings() -> None:
    envelope = WORDS.envelope(0, Shape(dialect=Messages(plain=True)))
    assert isinstance(envelope["system"], str)
    assert isinstance(messages_of(envelope)[0]["content"], str)


def test_a_client_that_refers_to_the_last_response_sends_new_items_only() -> None:
    shape = Shape(dialect=Responses(history="previous"))
    envelope = WORDS.envelope(4, shape, Since(turn=3, response_id="resp_1"))
    calls = WORDS.reply(3).tool_calls
    assert envelope["previous_response_id"] == "resp_1"
    items: Any = envelope["input"]
    assert [item["call_id"] for item in items] == [call.id for call in calls]


CUT = [(RESPONSES, '"response.completed"'), (MESSAGES, '"message_stop"'), (CHAT, "[DONE]")]


@pytest.mark.parametrize(("dialect", "end"), CUT, ids=name)
async def test_a_stream_that_ends_early_is_no_whole_answer(dialect: Dialect, end: str) -> None:
    shape = Shape(dialect=dialect, stream=True)
    async with ToyUpstream() as toy:
        (answer,) = (await run_session(WORDS, toy.base_url, toy, shape, Pace(last=1))).answers
    body = b": keep-alive\n\n" + answer.body
    assert dialect.is_whole(body)
    last = body.rindex(end.encode()) + len(end)
    assert not any(dialect.is_whole(body[:length]) for length in [*range(0, last, 499), last - 1])


@requires_shared
@pytest.mark.parametrize("dialect", [RESPONSES, Responses(typed=False, ids=False), MESSAGES], ids=name)
def test_large_transcripts_are_valid_at_every_length(dialect: Dialect) -> None:
    for file in find_large():
        session = with_thinking(load_transcript(file, Limits(messages=120, text_chars=20_000)))
        steps = {*range(0, len(session), 10), len(session) - 1}
        bodies = [session.envelope(turn, Shape(dialect=dialect)) for turn in steps]
        found = {dialect.find_violation(body, dialect.headers("k"), STRICT) for body in bodies}
        assert found == {None}, file
