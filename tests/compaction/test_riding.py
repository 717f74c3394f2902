"""When a summary rides on the conversation's own request, and what the call says."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from gateway.compaction.riding import count_kept, make_riding_message
from gateway.compaction.summary_client import CallTimedOut, PromptRefused
from gateway.compaction.summary_prompt import FittedCall
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.situation import Situation
from gateway.core.economy.rates import Rates
from gateway.core.errors import UpstreamFailed
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.pivot import Mark
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Summary
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.payload import MeasuredRequest
from gateway.core.sizing.usage import Usage
from tests.builders.chat import converse, make_batch, make_pivot
from tests.builders.compaction import (
    CompactionParts,
    compaction_parts,
    make_cut,
    make_situation,
    talk,
)
from tests.builders.riding import RIDDEN, RIDING, note_answer, turn_with
from tests.builders.state import make_head

_CUT = make_cut(9)


async def fit(
    turn: Turn | None = None,
    cut: Cut = _CUT,
    situation: Situation | None = None,
    prepare: Callable[[CompactionParts], None] = note_answer,
) -> FittedCall | None:
    async with compaction_parts() as parts:
        prepare(parts)
        situation = situation or make_situation(RIDDEN, RIDING)
        return await parts.rides.fit(turn if turn is not None else turn_with(), situation, cut)


def body_of(fitted: FittedCall | None) -> dict[str, Any]:
    assert fitted is not None and fitted.is_riding and fitted.call.riding is not None
    value: dict[str, Any] = json.loads(fitted.call.riding)
    return value


# The call


async def test_it_is_the_body_that_was_sent_and_one_message() -> None:
    fitted = await fit()
    sent = json.loads(RIDDEN.body.data)
    body = body_of(fitted)
    assert body["messages"][:-1] == sent["messages"] and body["tools"] == sent["tools"]
    message = body["messages"][-1]
    assert message["role"] == "user"
    assert message["content"].startswith("Stop. 4 stay.\n\nSummarize.")
    assert message["content"].endswith("Write at most 600 words.")
    assert fitted is not None and fitted.cut == _CUT
    # The facts that it must mention are looked for in what it covers.
    assert len(fitted.entries) == _CUT.covers - _CUT.start


async def test_what_is_active_is_sent_as_it_was() -> None:
    pivot = make_pivot(RIDDEN.conversation, 3, summary="Earlier.")
    batch = make_batch(RIDDEN.conversation, [Mark(6, 100)])
    situation = make_situation(RIDDEN, RIDING, sticky=pivot, pivots=(pivot,), batches=(batch,))
    texts = [
        str(m["content"]) for m in body_of(await fit(cut=make_cut(9, pivot), situation=situation))["messages"]
    ]
    assert any("Earlier." in text for text in texts)
    assert any(len(text) < 400 and text.startswith("2 abcdefg") for text in texts)


async def test_the_prompt_is_what_upstream_counted_and_the_message() -> None:
    fitted = await fit(prepare=lambda parts: note_answer(parts, prompt_tokens=30_000))
    assert fitted is not None
    assert 30_000 + fitted.raw_tokens < fitted.prompt_tokens < 30_000 + 2 * fitted.raw_tokens + 50


async def test_before_the_response_the_prompt_is_estimated() -> None:
    fitted = await fit(prepare=lambda parts: note_answer(parts, prompt_tokens=0))
    assert fitted is not None
    situation = make_situation(RIDDEN, RIDING)
    whole = situation.estimate(situation.view(None, ()))
    assert fitted.prompt_tokens > whole.tokens + whole.unsure + fitted.raw_tokens


def test_the_message_has_what_every_summary_call_ends_with() -> None:
    summary = Summary(extra_context=("Branch: main",), instructions="Keep names.")
    policy = replace(RIDING, summary=summary)
    said = make_riding_message(policy, _CUT, 4).split("\n\n")
    assert said[:3] == ["Stop. 4 stay.", "Branch: main", "Summarize."]
    assert said[-2:] == ["Keep names.", "Write at most 600 words."]


def test_kept_messages_are_those_behind_the_cut() -> None:
    situation = make_situation(RIDDEN)
    assert count_kept(situation, make_cut(9)) == len(RIDDEN.conversation.messages) - 9


# When it rides


async def test_it_rides_on_a_warm_cache_with_a_price() -> None:
    assert await fit() is not None
    assert await fit(turn_with(rates=Rates())) is None
    assert await fit(prepare=lambda parts: note_answer(parts, 299)) is not None
    assert await fit(prepare=lambda parts: note_answer(parts, 301)) is None
    assert await fit(prepare=lambda _: None) is None


async def test_the_cache_of_other_tools_or_of_another_model_is_not_this_ones() -> None:
    def prepare(parts: CompactionParts) -> None:
        note_answer(parts)
        head = parts.state.heads.find(RIDDEN.conversation, "scope")
        assert head is not None
        head.scope = "another"

    assert await fit(prepare=prepare) is None


@pytest.mark.parametrize("purpose", ["summary", "title"])
async def test_side_calls_of_the_client_are_not_ridden(purpose: str) -> None:
    assert await fit(turn_with(purpose=purpose)) is None


async def test_a_command_to_the_gateway_is_never_sent() -> None:
    assert await fit(turn_with(command="keep names")) is None


async def test_a_request_that_only_names_its_history_is_not_ridden() -> None:
    assert await fit(turn_with(raw_body=b"{}")) is None


async def test_a_digest_and_a_pivot_that_was_never_sent_are_not_ridden_on() -> None:
    digest = make_pivot(RIDDEN.conversation, 3, is_digest=True)
    pivot = make_pivot(RIDDEN.conversation, 3)
    sent = make_situation(RIDDEN, RIDING, sticky=digest, pivots=(digest,))
    assert await fit(cut=make_cut(9, digest), situation=sent) is None
    unsent = make_situation(RIDDEN, RIDING, pivots=(pivot,))
    assert await fit(cut=make_cut(9, pivot), situation=unsent) is None


async def test_the_window_holds_prompt_and_summary() -> None:
    fitted = await fit()
    assert fitted is not None
    room = fitted.prompt_tokens + _CUT.longest_tokens
    assert await fit(turn_with(limits=Limits(context=room))) is not None
    assert await fit(turn_with(limits=Limits(context=room - 1))) is None
    assert await fit(turn_with(limits=Limits(input=fitted.prompt_tokens - 1))) is None
    assert await fit(turn_with(limits=Limits(output=_CUT.longest_tokens))) is not None
    assert await fit(turn_with(limits=Limits(output=_CUT.longest_tokens - 1))) is None


async def test_a_body_that_may_have_too_many_bytes_or_pictures_is_not_ridden_unless_it_was_answered() -> None:
    situation = make_situation(RIDDEN, RIDING)
    measured = MeasuredRequest(situation.sizes, situation.known, situation.limits)
    situation = make_situation(RIDDEN, RIDING, in_tokens=measured)
    assert await fit(situation=situation) is not None
    unsent = partial(note_answer, prompt_tokens=0)
    assert await fit(situation=situation, prepare=unsent) is None
    assert await fit(prepare=unsent) is not None


async def test_it_rides_only_where_that_is_cheaper() -> None:
    def answered(prompt_tokens: int) -> Callable[[CompactionParts], None]:
        return partial(note_answer, prompt_tokens=prompt_tokens)

    assert await fit(prepare=answered(40_000)) is not None
    assert await fit(prepare=answered(40_001)) is None
    assert await fit(turn_with(rates=Rates(read=0.5)), prepare=answered(8_001)) is None
    # What is new is not in the cache.
    before = make_head(converse(talk(1)), "scope", prompt_tokens=2_000)

    def prepare(parts: CompactionParts) -> None:
        before.ledger = BranchLedger(answered_seconds=parts.clock())
        parts.state.heads.hold(before)

    assert await fit(prepare=prepare) is None
    assert await fit(cut=make_cut(9, replaced_tokens=40_000), prepare=prepare) is not None


@pytest.mark.parametrize(("age_seconds", "rides"), [(-310, False), (-5, True), (290, True), (310, False)])
async def test_a_cache_is_warm_for_minutes_and_not_in_the_future(age_seconds: int, rides: bool) -> None:
    before = make_head(converse(talk(1)), "scope", prompt_tokens=2_000)

    def prepare(parts: CompactionParts) -> None:
        before.ledger = BranchLedger(answered_seconds=parts.clock() - age_seconds)
        parts.state.heads.hold(before)

    assert (await fit(cut=make_cut(9, replaced_tokens=40_000), prepare=prepare) is not None) == rides


# After failures


async def test_a_model_that_answered_otherwise_is_not_asked_so_for_an_hour() -> None:
    async with compaction_parts() as parts:
        note_answer(parts)
        turn, situation = turn_with(), make_situation(RIDDEN, RIDING)
        parts.rides.note_rejected(turn, "no headings")
        assert await parts.rides.fit(turn, situation, _CUT) is None
        other = msgspec.structs.replace(turn, upstream=replace(turn.upstream, name="other"))
        assert await parts.rides.fit(other, situation, _CUT) is not None
        parts.clock.now += 3_601
        note_answer(parts)
        assert await parts.rides.fit(turn, situation, _CUT) is not None


@pytest.mark.parametrize(
    ("error", "minutes"),
    [
        (UpstreamFailed("status 500"), 5),
        (CallTimedOut("timeout"), 60),
        (PromptRefused("status 400", Overflow(kind="tokens")), 60),
        (PromptRefused("status 400", Overflow(kind="tokens", context=64_000)), 0),
        (PromptRefused("status 400", None), 60),
    ],
)
async def test_what_such_requests_would_meet_again_counts_against_the_model(
    error: Exception, minutes: int
) -> None:
    async with compaction_parts() as parts:
        turn = turn_with()
        parts.rides.note_failed(turn, error)
        assert await find_avoided_minutes(parts, turn) == minutes


@pytest.mark.parametrize(("reason", "minutes"), [("no headings", 60), ("error", 5), ("unfinished", 5)])
async def test_a_reply_that_broke_says_nothing_about_the_model(reason: str, minutes: int) -> None:
    async with compaction_parts() as parts:
        turn = turn_with()
        parts.rides.note_rejected(turn, reason)
        assert await find_avoided_minutes(parts, turn) == minutes


@pytest.mark.parametrize(
    ("usage", "minutes"),
    [
        (Usage(30_000, 1_000, cached_tokens=28_000), 0),
        # The cache was cold, or the model thought for too long.
        (Usage(30_000, 1_000, cached_tokens=0), 60),
        (Usage(30_000, 4_000, cached_tokens=28_000), 60),
        # Nothing is known.
        (Usage(30_000, 1_000), 0),
        (None, 0),
    ],
)
async def test_a_ride_that_cost_more_than_a_quoted_summary_is_the_last_for_an_hour(
    usage: Usage | None, minutes: int
) -> None:
    async with compaction_parts() as parts:
        turn = turn_with()
        parts.rides.note_cost(turn, make_cut(9, replaced_tokens=15_000), 1_000, usage)
        assert await find_avoided_minutes(parts, turn) == minutes


async def find_avoided_minutes(parts: CompactionParts, turn: Turn) -> int:
    """For how long the model is asked no riding question: 0, 5 or 60."""
    situation = make_situation(RIDDEN, RIDING)
    passed, steps = 0, (0, 5, 60)
    for minutes in steps:
        parts.clock.now += (minutes - passed) * 60 + 0.5
        passed = minutes
        note_answer(parts)
        if await parts.rides.fit(turn, situation, _CUT) is not None:
            return minutes
    return 100
