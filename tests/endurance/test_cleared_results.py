"""Clients that clear old tool results themselves: the summary stays in force, and is not made twice."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.toy.agent import Message, Session, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.reply import Reply
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

_CLEARED = "[Old tool result content cleared]"
_SESSION = make_session(40, 7, "one_user", 500)
_WINDOW = 16_000
_NEWEST_KEPT = 1


def with_results(session: Session, turns: int, text: str) -> Session:
    """The same session after its client has put a text in place of the results of its first turns."""

    def replaced(message: Message) -> Message:
        return {**message, "content": text} if message["role"] == "tool" else message

    changed = [
        replace(turn, followers=tuple(map(replaced, turn.followers))) for turn in session.turns[:turns]
    ]
    return replace(session, turns=(*changed, *session.turns[turns:]))


async def play(
    gateway: RunningGateway, toy: ToyUpstream, session: Session, turns: range, key: str = "sk-toy"
) -> Run:
    pace = Pace(first=turns.start, last=turns.stop, key=key)
    run = await run_session(session, gateway.base_url, toy, pace=pace)
    assert run.failed == [] and run.refusals == []
    await gateway.settle()
    return run


async def play_until_compacted(gateway: RunningGateway, toy: ToyUpstream) -> tuple[Run, int]:
    """The first request that went out with a pivot, and the turn that comes next."""
    for turn in range(len(_SESSION)):
        run = await play(gateway, toy, _SESSION, range(turn, turn + 1))
        if plans_of(run) == ["pivot"]:
            return run, turn + 1
    raise AssertionError("never compacted")


def plans_of(run: Run) -> list[str | None]:
    return [answer.header("x-gateway-plan") for answer in run.answers]


def identities_of(run: Run) -> set[str | None]:
    return {answer.header("x-gateway-conversation") for answer in run.answers}


def messages_of(run: Run, at: int = 0) -> list[Any]:
    messages = run.outgoing[at].request["messages"]
    return messages if isinstance(messages, list) else []


def split_at_summary(messages: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Everything up to the summary, and the tail; the neutral user message between them left out."""
    end = 1 + next(at for at, message in enumerate(messages) if message["role"] == "assistant")
    tail = end + 1 if messages[end]["role"] == "user" else end
    return list(messages[:end]), list(messages[tail:])


def assert_same_summary(before: Run, after: Run, session: Session, first: int) -> None:
    """Each request after was sent as: the very messages up to the summary, then its own newest ones."""
    known, _ = split_at_summary(messages_of(before))
    for at in range(len(after.outgoing)):
        sent, tail = split_at_summary(messages_of(after, at))
        assert sent == known
        assert tail == session.messages(first + at)[-len(tail) :]


def number_summaries(toy: ToyUpstream) -> None:
    """So that no two of them are alike."""
    toy.summary = lambda _: Reply(text=f"Summary number {len(toy.summaries)}: we looked around and went on.")


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running on", "restarted"])
async def test_a_client_that_clears_old_results_keeps_its_summary(is_restarted: bool, store_url: str) -> None:
    async with ToyUpstream(window=_WINDOW) as toy:
        number_summaries(toy)
        settings = make_settings(toy, store=store_url)
        async with running_gateway(settings) as gateway:
            before, turn = await play_until_compacted(gateway, toy)
            made = len(toy.summaries)
            session = with_results(_SESSION, turn - _NEWEST_KEPT, _CLEARED)
            if not is_restarted:
                after = await play(gateway, toy, session, range(turn, turn + 3))
        if is_restarted:
            async with running_gateway(settings) as gateway:
                after = await play(gateway, toy, session, range(turn, turn + 3))
    assert plans_of(after) == ["pivot"] * 3
    assert len(toy.summaries) == made
    assert_same_summary(before, after, session, turn)
    assert len(identities_of(after)) == 1
    assert is_restarted or identities_of(after) == identities_of(before)


async def test_a_restart_after_the_results_were_cleared_changes_nothing(store_url: str) -> None:
    async with ToyUpstream(window=_WINDOW) as toy:
        number_summaries(toy)
        settings = make_settings(toy, store=store_url)
        async with running_gateway(settings) as gateway:
            before, turn = await play_until_compacted(gateway, toy)
            made = len(toy.summaries)
            session = with_results(_SESSION, turn - _NEWEST_KEPT, _CLEARED)
            between = await play(gateway, toy, session, range(turn, turn + 1))
        async with running_gateway(settings) as gateway:
            after = await play(gateway, toy, session, range(turn + 1, turn + 3))
    assert plans_of(after) == ["pivot"] * 2 and len(toy.summaries) == made
    assert_same_summary(before, after, session, turn + 1)
    assert identities_of(after) == identities_of(between) == identities_of(before)


async def test_a_client_that_clears_again_and_again_is_never_without_a_pivot() -> None:
    async with ToyUpstream(window=_WINDOW) as toy, running_gateway(make_settings(toy)) as gateway:
        _, start = await play_until_compacted(gateway, toy)
        made = len(toy.summaries)
        for turn in range(start, len(_SESSION)):
            session = with_results(_SESSION, turn // 5 * 5, _CLEARED)
            run = await play(gateway, toy, session, range(turn, turn + 1))
            assert plans_of(run) == ["pivot"]
        assert len(toy.summaries) <= made + 1


@pytest.mark.parametrize("edited", [1, 2, 40], ids=["the first", "two", "all"])
@pytest.mark.parametrize("text", ["An edited result.", f"{_CLEARED} by hand", ""])
async def test_results_that_became_another_text_never_get_the_old_summary(text: str, edited: int) -> None:
    """Of the first turns; those of later ones are cleared."""
    async with ToyUpstream(window=_WINDOW) as toy, running_gateway(make_settings(toy)) as gateway:
        number_summaries(toy)
        before, turn = await play_until_compacted(gateway, toy)
        summary = split_at_summary(messages_of(before))[0][-1]
        session = with_results(_SESSION, turn - _NEWEST_KEPT, _CLEARED)
        session = with_results(session, min(edited, turn - _NEWEST_KEPT), text)
        after = await play(gateway, toy, session, range(turn, turn + 3))
    assert all(summary not in messages_of(after, at) for at in range(3))
    assert not identities_of(after) & identities_of(before)


async def test_another_tenants_cleared_history_never_gets_the_summary() -> None:
    async with ToyUpstream(window=_WINDOW) as toy, running_gateway(make_settings(toy)) as gateway:
        number_summaries(toy)
        before, turn = await play_until_compacted(gateway, toy)
        summary = split_at_summary(messages_of(before))[0][-1]
        session = with_results(_SESSION, turn - _NEWEST_KEPT, _CLEARED)
        other = await play(gateway, toy, session, range(turn, turn + 1), key="sk-other")
        own = await play(gateway, toy, session, range(turn, turn + 1))
    assert summary not in messages_of(other)
    assert summary in messages_of(own)
