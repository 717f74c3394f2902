"""`/compact` as the last message: the gateway does it, and says so in the client's format."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Message, Session, Shape, Turn, make_session
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.house import make_settings
from tests.toy.product import Product, serve
from tests.toy.reply import read_events, read_object
from tests.toy.running import Answer, Pace, Run, ask, run_session, wait_until
from tests.toy.upstream import ToyUpstream

_ON = "policies: {default: {commands: true}}\n"
_RESUME = "Go on from this summary with the next step"
_SEPARATOR = "(end of the summary)"
# Here the agent reports, and the user has the word.
_REPORT = 6
_KEY = "sk-toy"
_COMMAND: Message = {"role": "user", "content": "/compact"}


def make_talk() -> Session:
    return make_session(16, 3, style="many_users", turn_tokens=1_200)


async def play(gateway: Product, toy: ToyUpstream, session: Session, first: int, last: int) -> Run:
    run = await run_session(session, gateway.base_url, toy, pace=Pace(first=first, last=last, key=_KEY))
    assert run.failed == [] and run.refusals == []
    return run


def with_more(session: Session, at: int, more: Sequence[Message]) -> Session:
    """The same session, but after the reply of this turn the user says something else first.

    more: user, assistant, user and so on; it ends with the user's word.
    """
    done, (before, after) = session.turns[at], (session.turns[:at], session.turns[at + 1 :])
    replies = [done.assistant, *more[1::2]]
    said = [(message,) for message in more[::2]]
    turns = [Turn(reply, words) for reply, words in zip(replies, said, strict=True)]
    return dataclasses.replace(session, turns=(*before, *turns, *after))


def with_command(session: Session, command: Message = _COMMAND) -> Session:
    """Its request _REPORT + 1 is the command, and its last one."""
    return with_more(session, _REPORT, [command])


def with_pair(session: Session, told: str, command: Message = _COMMAND) -> Session:
    """The client sends the command and what it was told, and goes on."""
    (wish,) = session.turns[_REPORT].followers
    return with_more(session, _REPORT, [command, {"role": "assistant", "content": told}, wish])


@asynccontextmanager
async def talking(more: str = _ON) -> AsyncIterator[tuple[Session, ToyUpstream, Product, Run]]:
    """A conversation in which the agent has reported, and how it was played."""
    session = make_talk()
    async with ToyUpstream() as toy, serve(make_settings(toy, more=more)) as gateway:
        yield session, toy, gateway, await play(gateway, toy, session, 0, _REPORT + 1)


async def say(
    gateway: Product,
    session: Session,
    shape: Shape | None = None,
    key: str = _KEY,
    on_head: Callable[[], None] = lambda: None,
) -> Answer:
    """The request after the report."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as client:
        body = session.request(_REPORT + 1, shape or Shape())
        return await ask(client, f"{gateway.base_url}/chat/completions", body, on_head)


def read_text(answer: Answer) -> str:
    """Of a reply that is whole and says that it has stopped by itself."""
    assert answer.is_whole
    whole = read_object(answer.body)
    choices: list[Any] = [event["choices"] for event in ([whole] if whole else read_events(answer.body))]
    parts = [choice for each in choices for choice in each]
    assert [part["finish_reason"] for part in parts if part.get("finish_reason")] == ["stop"]
    return "".join((part.get("message") or part["delta"]).get("content") or "" for part in parts)


def texts_of(run: Run, at: int = -1) -> list[Any]:
    messages: Any = run.outgoing[at].request["messages"]
    return [message.get("content") for message in messages]


def plans_of(run: Run) -> list[str | None]:
    return [answer.header("x-gateway-plan") for answer in run.answers]


@pytest.mark.system(15)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_gateway_compacts_and_responds_and_upstream_gets_the_summary_call_only(
    stream: bool,
) -> None:
    session = make_talk()
    command: Message = {"role": "user", "content": "/compact Keep ticket numbers."}
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_ON)) as gateway:
        before = await play(gateway, toy, session, 0, _REPORT + 1)
        chats = len(toy.chats)
        answer = await say(gateway, with_command(session, command), Shape(stream=stream, include_usage=True))
        told = read_text(answer)
        assert len(toy.chats) == chats
        after = await play(gateway, toy, with_pair(session, told, command), _REPORT + 2, _REPORT + 5)
    (summary,) = toy.summaries
    assert b"Keep ticket numbers." in summary.body and b"/compact" not in summary.body
    assert told.startswith("Compacted: ") and b'"usage"' not in answer.body
    # In force at the next request, and sticky: what was sent before begins what is sent later.
    assert set(plans_of(after)) == {"pivot"} and len(toy.summaries) == 1
    sent: list[Any] = [seen.request["messages"] for seen in after.outgoing]
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(sent))
    assert after.outgoing[0].prompt_tokens < before.outgoing[-1].prompt_tokens
    # One conversation all the while.
    identities = {a.header("x-gateway-conversation") for a in (*before.answers, answer, *after.answers)}
    assert len(identities) == 1
    # The pair is a turn like any other. Nobody was interrupted: there is nothing to resume.
    assert [text for text in texts_of(after, 0) if text in (command["content"], told)] == [
        command["content"],
        told,
    ]
    assert not any(_RESUME in str(text) for text in texts_of(after))


async def test_half_a_character_in_a_command_harms_nothing() -> None:
    async with talking() as (session, toy, gateway, _before):
        command: Message = {"role": "user", "content": "/compact Keep \ud83d numbers."}
        told = read_text(await say(gateway, with_command(session, command), Shape(ascii=True)))
    (summary,) = toy.summaries
    assert told.startswith("Compacted: ") and " numbers." in summary.body.decode("utf-8")


async def test_the_response_tells_what_was_done() -> None:
    async with talking() as (session, toy, gateway, before):
        told = read_text(await say(gateway, with_command(session)))
        after = await play(gateway, toy, with_pair(session, told), _REPORT + 2, _REPORT + 3)
    words = told.replace(",", "").split()
    messages, counted_before, counted_after = (int(word) for word in words if word.isdigit())
    received: Any = before.outgoing[-1].request["messages"]
    # The report is folded too; what stays is the leading block and the task.
    assert messages == len(received) + 1 - 2
    true_before, true_after = before.outgoing[-1].prompt_tokens, after.outgoing[0].prompt_tokens
    assert true_before * 0.9 < counted_before < true_before * 1.2
    # The user's next wish comes on top.
    assert counted_after < true_after < counted_after + 1_000


async def test_a_client_that_drops_command_and_response_goes_on_compacted_in_the_same_conversation() -> None:
    async with talking() as (session, toy, gateway, before):
        await say(gateway, with_command(session))
        after = await play(gateway, toy, session, _REPORT + 1, _REPORT + 4)
    assert set(plans_of(after)) == {"pivot"} and len(toy.summaries) == 1
    identities = {answer.header("x-gateway-conversation") for answer in (*before.answers, *after.answers)}
    assert len(identities) == 1


async def test_the_tail_of_the_policy_stays_and_a_neutral_text_separates_it_from_the_summary() -> None:
    more = "policies: {default: {commands: true, keep: {tail_messages: 4}}}\n"
    async with talking(more) as (session, toy, gateway, _):
        told = read_text(await say(gateway, with_command(session)))
        after = await play(gateway, toy, with_pair(session, told), _REPORT + 2, _REPORT + 4)
    texts = texts_of(after, 0)
    assert session.turns[_REPORT].assistant["content"] in texts
    assert texts.count(_SEPARATOR) == 1 and not any(_RESUME in str(text) for text in texts)


@pytest.mark.system(15)
async def test_the_same_command_after_a_restart_makes_no_second_summary(store_url: str) -> None:
    session = make_talk()
    async with ToyUpstream() as toy:
        settings = make_settings(toy, store=store_url, more=_ON)
        async with serve(settings) as gateway:
            await play(gateway, toy, session, 0, _REPORT + 1)
            first = await say(gateway, with_command(session))
        async with serve(settings) as gateway:
            again = await say(gateway, with_command(session))
            after = await play(gateway, toy, with_pair(session, read_text(first)), _REPORT + 2, _REPORT + 4)
    assert_same(first, again)
    assert len(toy.summaries) == 1 and set(plans_of(after)) == {"pivot"}


def assert_same(first: Answer, again: Answer) -> None:
    assert read_text(again) == read_text(first)
    assert json.loads(again.body)["id"] == json.loads(first.body)["id"]


async def test_a_retry_waits_for_the_summary_under_way_and_another_command_is_told_of_it() -> None:
    session = make_talk()
    other = with_command(session, {"role": "user", "content": "/compact Keep names."})
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_ON)) as gateway:
        await play(gateway, toy, session, 0, _REPORT + 1)
        ready = asyncio.Event()
        toy.summary_delivery = Delivery(after=ready)
        first = asyncio.create_task(say(gateway, with_command(session)))
        await wait_until(lambda: len(toy.summaries) == 1)
        refused = await say(gateway, other)
        again = asyncio.create_task(say(gateway, with_command(session)))
        asyncio.get_running_loop().call_later(0.2, ready.set)
        assert read_text(await again) == read_text(await first)
    assert "under way" in read_text(refused) and len(toy.summaries) == 1


# Its next report, behind a command and its answer.
_LATER = _REPORT + 8


async def test_a_second_command_later_builds_on_the_first() -> None:
    async with talking() as (session, toy, gateway, _):
        told = read_text(await say(gateway, with_command(session)))
        longer = with_pair(session, told)
        run = await play(gateway, toy, longer, _REPORT + 2, _LATER + 1)
        (wish,) = longer.turns[_LATER].followers
        twice = with_more(longer, _LATER, [_COMMAND, {"role": "assistant", "content": "Compacted."}, wish])
        answers = await run_session(
            twice, gateway.base_url, toy, pace=Pace(first=_LATER + 1, last=_LATER + 2)
        )
        after = await play(gateway, toy, twice, _LATER + 2, _LATER + 4)
    assert read_text(answers.answers[0]).startswith("Compacted: ")
    _, second = toy.summaries
    framing, _, earlier = texts_of(run)[2].partition("\n\n")
    asked: Any = second.request["messages"]
    assert "written by a model and is not verified" in framing
    assert earlier and earlier in asked[-1]["content"] and framing not in asked[-1]["content"]
    assert all(earlier not in text for text in texts_of(after))
    assert set(plans_of(after)) == {"pivot"}


async def test_the_response_says_when_there_is_nothing_to_compact() -> None:
    session = make_session(3, 3)
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_ON)) as gateway:
        alone = dataclasses.replace(session, opening=(_COMMAND,))
        run = await run_session(alone, gateway.base_url, toy, pace=Pace(last=1))
        await play(gateway, toy, session, 0, 1)
    assert read_text(run.answers[0]).startswith("Nothing to compact") and toy.summaries == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_summary_is_told_and_the_conversation_goes_on_unchanged(
    stream: bool,
) -> None:
    async with talking() as (session, toy, gateway, before):
        failure = RawAnswer(status=503, pieces=(b'{"error": {"message": "secret words of somebody"}}',))
        toy.summary_failures = [failure] * 2
        answer = await say(gateway, with_command(session), Shape(stream=stream))
        told = read_text(answer)
        after = await play(gateway, toy, with_pair(session, told), _REPORT + 2, _REPORT + 4)
        # Once upstream is well again, the same command is carried out.
        again = read_text(await say(gateway, with_command(session)))
    assert told == "The compaction failed (status 503). The conversation is unchanged."
    assert plans_of(after) == ["passthrough"] * 2
    sent, received = texts_of(after, 0), texts_of(before)
    assert sent[: len(received)] == received and sent[-3:-1] == ["/compact", told]
    assert again.startswith("Compacted: ")


async def test_a_command_needs_neither_a_known_window_nor_automatic_compaction() -> None:
    session = make_talk()
    more = "policies: {default: {commands: true, compaction: {auto: false}}}\n"
    async with ToyUpstream() as toy:
        settings = make_settings(toy, more=more).replace("toy-*", "other-*")
        async with serve(settings) as gateway:
            await play(gateway, toy, session, 0, _REPORT + 1)
            told = read_text(await say(gateway, with_command(session)))
            after = await play(gateway, toy, with_pair(session, told), _REPORT + 2, _REPORT + 4)
    assert told.startswith("Compacted: ") and plans_of(after) == ["pivot"] * 2


async def test_a_client_that_hangs_up_still_gets_its_compaction() -> None:
    async with talking() as (session, toy, gateway, _):
        ready = asyncio.Event()
        toy.summary_delivery = Delivery(after=ready)
        asking = asyncio.create_task(say(gateway, with_command(session)))
        await wait_until(lambda: len(toy.summaries) == 1)
        asking.cancel()
        ready.set()
        await gateway.at_rest()
        after = await play(gateway, toy, session, _REPORT + 1, _REPORT + 3)
    assert plans_of(after) == ["pivot"] * 2 and len(toy.summaries) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_waits_gets_keep_alives_and_then_the_response(stream: bool) -> None:
    more = _ON + "keepalive: {after_seconds: 0.05}\n"
    async with talking(more) as (session, toy, gateway, _):
        toy.summary_delivery = Delivery(before_headers_seconds=0.5)
        answer = await say(gateway, with_command(session), Shape(stream=stream))
    assert answer.body.startswith(b": keep-alive\n\n" if stream else b" ")
    assert read_text(answer).startswith("Compacted: ")


async def test_a_client_that_would_wait_too_long_is_told_that_the_compaction_goes_on() -> None:
    more = "policies: {default: {commands: true, summary: {deadline_seconds: 0.2}}}\n"
    async with talking(more) as (session, toy, gateway, _):
        ready = asyncio.Event()
        toy.summary_delivery = Delivery(after=ready)
        told = read_text(await say(gateway, with_command(session)))
        ready.set()
        await gateway.at_rest()
        after = await play(gateway, toy, with_pair(session, told), _REPORT + 2, _REPORT + 4)
    assert "under way" in told and plans_of(after) == ["pivot"] * 2


async def test_a_command_waits_for_an_automatic_compaction_and_then_makes_its_own() -> None:
    """It may have a resume text in it, and not these instructions."""
    session = make_talk()
    more = "policies: {default: {commands: true, compaction: {prune: false}}}\n"
    more += "keepalive: {after_seconds: 0.01}\n"
    command: Message = {"role": "user", "content": "/compact Keep names."}
    async with ToyUpstream(window=13_000) as toy, serve(make_settings(toy, more=more)) as gateway:
        ready = asyncio.Event()
        toy.summary_delivery = Delivery(after=ready)
        await play(gateway, toy, session, 0, _REPORT + 1)
        await wait_until(lambda: len(toy.summaries) == 1)
        # A keep-alive says that the command waits.
        told = read_text(await say(gateway, with_command(session, command), on_head=ready.set))
        after = await play(gateway, toy, with_pair(session, told, command), _REPORT + 2, _REPORT + 3)
    _, second = toy.summaries
    assert b"Keep names." in second.body and b"<earlier-summary>" not in second.body
    assert plans_of(after) == ["pivot"]
    assert not any(_RESUME in str(text) for text in texts_of(after))


_TENANTS = """\
policies: {talking: {commands: true}}
tenants:
  - {name: one, keys: [sk-one], policy: talking}
  - {name: two, keys: [sk-two]}
"""


@pytest.mark.system(15)
async def test_only_tenants_whose_policy_allows_it_have_commands() -> None:
    session = with_command(make_talk())
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_TENANTS)) as gateway:
        one = await say(gateway, session, key="sk-one")
        assert [toy.chats, len(toy.summaries)] == [[], 1]
        two = await say(gateway, session, key="sk-two")
    assert read_text(one).startswith("Compacted: ")
    assert read_text(two) == "Understood." and two.header("x-gateway-plan") == "passthrough"
    assert [seen.body for seen in toy.chats] == [session.request(_REPORT + 1)]


async def test_there_are_no_commands_by_default() -> None:
    session = with_command(make_talk())
    async with ToyUpstream() as toy, serve(make_settings(toy)) as gateway:
        assert read_text(await say(gateway, session)) == "Understood."
    assert [seen.body for seen in toy.chats] == [session.request(_REPORT + 1)] and toy.summaries == []


_REMINDER = "<system-reminder>Nothing to do.</system-reminder>"
_PART = {"type": "text", "text": "/compact"}
_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


_CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "instructions"),
    [
        ({"role": "user", "content": f"{_REMINDER}\n/compact Keep names.\n{_REMINDER}"}, "Keep names."),
        ({"role": "user", "content": [{"type": "text", "text": _REMINDER}, _PART]}, ""),
        ({"role": "user", "content": [_PART, {"type": "text", "text": "Look."}]}, "Look."),
        ({"role": "user", "content": "/compacted"}, None),
        ({"role": "user", "content": "What does /compact do?"}, None),
        ({"role": "user", "content": [_PART, _PICTURE]}, None),
        ({"role": "system", "content": "/compact"}, None),
        ({"role": "assistant", "content": "/compact"}, None),
        ({"role": "tool", "tool_call_id": "1", "content": "/compact"}, None),
    ],
)
async def test_the_whole_text_of_a_last_user_message_decides(
    message: Message, instructions: str | None
) -> None:
    """A slash may be escaped in JSON. A command is not for the upstream, and what is none is."""
    talk: list[Message] = [
        {"role": "user", "content": "/compact is a word."},
        {"role": "assistant", "content": "Yes."},
    ]
    talk += [{"role": "user", "content": "Look. " * 400}]
    is_result = message["role"] == "tool"
    talk += [{"role": "assistant", "content": None, "tool_calls": [_CALL]}] if is_result else []
    talk += [] if is_result else [{"role": "assistant", "content": "Done. " * 400}]
    body = json.dumps({"model": "toy-model", "messages": [*talk, message]}).replace(
        '"/compact', '"\\/compact'
    )
    async with (
        ToyUpstream() as toy,
        serve(make_settings(toy, more=_ON)) as gateway,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {_KEY}"}) as client,
    ):
        await ask(client, f"{gateway.base_url}/chat/completions", body.encode())
    assert (toy.chats == []) is (instructions is not None)
    assert len(toy.summaries) == (instructions is not None)
    assert not instructions or instructions.encode() in toy.summaries[0].body
