"""Which calls a summary takes, what they hold and where they go, and what becomes of their replies."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec
import pytest
from pydantic import SecretStr

from gateway.compaction.client import FittedCall
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.request import CompactionReason, CompactionRequest, CompactionResult
from gateway.core.compaction.situation import Situation
from gateway.core.economy import Rates
from gateway.core.history.head import BranchLedger
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy, Prompts, Summary
from gateway.settings import UpstreamSettings
from gateway.wire.format import SummaryRequest
from tests.builders.compaction import (
    SUMMARIZING,
    CompactionParts,
    ModelReply,
    compaction_parts,
    make_cut,
    make_situation,
    receive,
    refuse,
    say,
    turn_of,
)
from tests.builders.quotas import make_limited_tenant
from tests.decisions.builders import JSON, converse, make_head, make_pivot, talk
from tests.decisions.parts import head_of

_PROMPTS = Prompts(
    question="What did we do?",
    instruction="Summarize.\n\n## Goal\nWhat?\n\n## Next\nThen?",
    resume="Go on.",
    ride="Stop. {kept} stay.",
    dropped="(dropped)",
)
RIDING = Policy(prompts=_PROMPTS)
CACHED = Rates(read=0.1)
RIDDEN = receive(6)
_LIMITS = Limits(context=64_000)


def turn_with(policy: Policy = RIDING, limits: Limits = _LIMITS, **fields: Any) -> Turn:
    return turn_of(RIDDEN, policy, limits, **({"rates": CACHED} | fields))


def note_answer(parts: CompactionParts, age_seconds: float = 0.0, **fields: Any) -> None:
    """The conversation's newest response ended so long ago."""
    head = head_of(RIDDEN, **fields)
    head.ledger = BranchLedger(answered_seconds=parts.clock() - age_seconds)
    parts.state.heads.hold(head)


_RECEIVED = receive(4)
_CUT = make_cut(5)
_GOOD = say("It works now.")


async def summarize(
    parts: CompactionParts,
    turn: Turn | None = None,
    request: CompactionRequest | None = None,
    cut: Cut = _CUT,
) -> CompactionResult:
    return await parts.summarizer.summarize(
        turn if turn is not None else turn_of(_RECEIVED),
        make_situation(_RECEIVED),
        cut,
        request
        if request is not None
        else CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8),
        9_000,
    )


async def run(*replies: ModelReply | Exception) -> tuple[CompactionResult, list[JSON]]:
    async with compaction_parts(*replies) as parts:
        return await summarize(parts), parts.model.calls


async def test_a_rejected_reply_is_asked_for_once_more() -> None:
    result, calls = await run(say("It wor", finish_reason="length"), _GOOD)
    assert result.pivot is not None and (result.calls, len(calls)) == (2, 2)
    result, calls = await run(say("It wor", finish_reason="length"))
    assert (result.failure, result.calls, len(calls)) == ("truncated", 2, 2)


@pytest.mark.parametrize(("spare_tokens", "calls"), [(0, 2), (2_000, 1)])
async def test_a_summary_above_its_cap_is_accepted_if_there_is_room(spare_tokens: int, calls: int) -> None:
    async with compaction_parts(say("It works now. " * 600)) as parts:
        result = await summarize(parts, cut=replace(_CUT, spare_tokens=spare_tokens))
    assert (result.calls, result.failure) == (calls, "" if spare_tokens else "over its cap")


@pytest.mark.parametrize("status", [401, 403, 429])
async def test_a_call_that_would_be_refused_again_is_not_repeated(status: int) -> None:
    result, calls = await run(refuse(status, "no"), _GOOD)
    assert (result.failure, len(calls)) == (f"status {status}", 1)


def stream(text: str, *endings: bytes) -> ModelReply:
    event = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return ModelReply(200, b"".join((b"data: " + json.dumps(event).encode() + b"\n\n", *endings)))


@pytest.mark.parametrize(
    "failure", [refuse(500, "oops"), OSError("broken"), stream("It works"), stream("x" * 1_000_001)]
)
async def test_a_server_error_and_a_stream_that_breaks_off_or_has_no_end_are_tried_again(
    failure: ModelReply | Exception,
) -> None:
    result, calls = await run(failure, _GOOD)
    assert result.pivot is not None and result.pivot.summary.startswith("It works now.")
    assert len(calls) == 2


async def test_after_a_prompt_that_was_too_long_the_next_one_is_shorter() -> None:
    too_long = refuse(400, "This model's maximum context length is 3000 tokens.")
    result, (first, second) = await run(too_long, _GOOD)
    assert result.pivot is not None
    assert len(second["messages"][-1]["content"]) < 0.8 * len(first["messages"][-1]["content"])


async def test_a_retry_beyond_the_budget_is_not_made() -> None:
    tenant = make_limited_tenant("t", summary_calls_per_hour=1)
    turn = msgspec.structs.replace(turn_of(_RECEIVED), tenant=tenant)
    async with compaction_parts(say("It wor", finish_reason="length"), _GOOD) as parts:
        result = await summarize(parts, turn)
        assert (result.failure, result.calls, len(parts.model.calls)) == ("over budget", 1, 1)
        assert parts.summarizer.is_over_budget(turn)


_AFTER = say("It works now.", prompt_tokens=4_000, completion_tokens=3)


async def ride(*replies: ModelReply | Exception) -> tuple[CompactionResult, list[JSON]]:
    """With a warm cache."""
    async with compaction_parts(*replies) as parts:
        note_answer(parts)
        return await summarize_riding(parts), parts.model.calls


async def summarize_riding(
    parts: CompactionParts, turn: Turn | None = None, cut: Cut | None = None
) -> CompactionResult:
    return await parts.summarizer.summarize(
        turn if turn is not None else turn_with(),
        make_situation(RIDDEN, RIDING),
        cut if cut is not None else make_cut(9),
        CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8),
        9_000,
    )


@pytest.mark.parametrize(
    "failure",
    [
        say("Sure. The next step is a test.", prompt_tokens=9_000, completion_tokens=20),
        say("## Goal\nFix", "length", prompt_tokens=9_000, completion_tokens=20),
        refuse(401, "no"),
        refuse(429, "no"),
        refuse(404, "The model `toy` does not exist"),
        refuse(400, "This model's maximum context length is 8000 tokens."),
        refuse(500, "oops"),
        OSError("broken"),
    ],
)
async def test_whatever_goes_wrong_the_history_is_quoted_as_ever(
    failure: ModelReply | Exception,
) -> None:
    result, (riding, quoted) = await ride(failure, _AFTER)
    assert result.pivot is not None and result.pivot.summary.startswith("It works now.")
    assert riding.get("tools") and not quoted.get("tools")
    assert (result.calls, result.riding_calls) == (2, 1)


async def test_a_failed_ride_takes_no_try_from_the_quoted_calls() -> None:
    result, calls = await ride(say("No."), say("It wor", "length"), _AFTER)
    assert result.pivot is not None and (result.calls, len(calls)) == (3, 3)
    result, calls = await ride(say("No."), say("It wor", "length"))
    assert (result.failure, len(calls)) == ("truncated", 3)


async def test_after_a_failed_ride_the_next_summaries_are_quoted_at_once() -> None:
    async with compaction_parts(say("Sure."), _AFTER) as parts:
        note_answer(parts)
        await summarize_riding(parts)
        result = await summarize_riding(parts)
        assert (result.calls, result.riding_calls, len(parts.model.calls)) == (1, 0, 3)


# Prompts


_QUOTED = receive(6)
_WHOLE = make_cut(11, replaced_tokens=5_000)


async def fit_call(parts: CompactionParts, turn: Turn, cut: Cut = _WHOLE) -> FittedCall | None:
    return await parts.quoted.fit(turn, make_situation(_QUOTED), cut, 8)


def other_upstream(*formats: Literal["chat", "messages"]) -> Mapping[str, UpstreamSettings]:
    own = turn_of(_QUOTED).upstream
    other = replace(
        own,
        name="other",
        base_url="http://other.example/v1",
        api_key=SecretStr("k2"),
        formats=frozenset(formats),
    )
    return {"other": other}


async def test_another_upstream_gets_nothing_of_the_client_and_the_format_that_it_supports() -> None:
    policy = replace(SUMMARIZING, summary=Summary(upstream="other", model="small"))
    turn = turn_of(_QUOTED, policy, raw_headers=((b"Authorization", b"Bearer mine"), (b"X-Team", b"a")))
    async with compaction_parts(upstreams=other_upstream("messages")) as parts:
        fitted_call = await fit_call(parts, turn)
    assert fitted_call is not None
    call = fitted_call.call
    headers = {name.lower(): value for name, value in call.headers}
    assert call.url == "http://other.example/v1/messages"
    assert "Bearer mine" not in headers.values() and "x-team" not in headers
    assert "anthropic-version" in headers
    assert (call.request.model, call.format.name) == ("small", "messages")


def prompt_of(fitted: FittedCall | None) -> str:
    assert fitted is not None
    assert isinstance(fitted.call.request, SummaryRequest)
    return "\n\n".join(fitted.call.request.parts)


async def test_context_lines_come_before_the_instruction_and_instructions_behind_it() -> None:
    summary = Summary(extra_context=("Branch: main", "Goal: port it"), instructions="Keep ticket numbers.")
    async with compaction_parts() as parts:
        prompt = prompt_of(await fit_call(parts, turn_of(_QUOTED, replace(SUMMARIZING, summary=summary))))
    words = ("</conversation>", "Branch: main\nGoal: port it", "Summarize.", "Keep ticket")
    places = [prompt.index(each) for each in words]
    assert places == sorted(places)


async def test_the_messages_that_stay_are_shown_in_a_block_as_far_as_the_policy_allows() -> None:
    received = receive(8)
    for kept_chars in (4_000, 0):
        policy = replace(SUMMARIZING, summary=Summary(kept_chars=kept_chars))
        turn = turn_of(received, policy, Limits(context=200_000))
        async with compaction_parts() as parts:
            call = await parts.quoted.fit(turn, make_situation(received), make_cut(5), 1)
        _, shown, rest = prompt_of(call).partition("</conversation>")[2].partition("<kept-messages>\n[")
        assert bool(shown) is (kept_chars > 0)
        block = rest.partition("</kept-messages>")[0]
        assert len(block) <= kept_chars + 100 and bool(shown) is ("characters cut" in block)


# Riding


_RIDDEN_CUT = make_cut(9)


async def fit_ride(
    turn: Turn | None = None,
    cut: Cut = _RIDDEN_CUT,
    situation: Situation | None = None,
    prepare: Callable[[CompactionParts], None] = note_answer,
) -> FittedCall | None:
    async with compaction_parts() as parts:
        prepare(parts)
        situation = situation or make_situation(RIDDEN, RIDING)
        return await parts.rides.fit(turn if turn is not None else turn_with(), situation, cut)


async def test_it_rides_on_a_warm_cache_with_a_price() -> None:
    assert await fit_ride() is not None
    assert await fit_ride(turn_with(rates=Rates())) is None
    assert await fit_ride(prepare=lambda parts: note_answer(parts, 299)) is not None
    assert await fit_ride(prepare=lambda parts: note_answer(parts, 301)) is None
    assert await fit_ride(prepare=lambda _: None) is None


async def test_the_cache_of_other_tools_or_of_another_model_is_not_this_ones() -> None:
    def prepare(parts: CompactionParts) -> None:
        note_answer(parts)
        head = parts.state.heads.find(RIDDEN.conversation, "scope")
        assert head is not None
        head.scope = "another"

    assert await fit_ride(prepare=prepare) is None


@pytest.mark.parametrize("changes", [{"purpose": "summary"}, {"purpose": "title"}, {"command": "keep names"}])
async def test_side_calls_of_the_client_and_commands_are_not_ridden(changes: JSON) -> None:
    assert await fit_ride(turn_with(**changes)) is None


async def test_a_digest_and_a_pivot_that_was_never_sent_are_not_ridden_on() -> None:
    digest = make_pivot(RIDDEN.conversation, 3, is_digest=True)
    pivot = make_pivot(RIDDEN.conversation, 3)
    sent = make_situation(RIDDEN, RIDING, sticky=digest, pivots=(digest,))
    assert await fit_ride(cut=make_cut(9, digest), situation=sent) is None
    unsent = make_situation(RIDDEN, RIDING, pivots=(pivot,))
    assert await fit_ride(cut=make_cut(9, pivot), situation=unsent) is None


async def test_it_rides_only_where_that_is_cheaper() -> None:
    def answered(prompt_tokens: int) -> Callable[[CompactionParts], None]:
        return partial(note_answer, prompt_tokens=prompt_tokens)

    assert await fit_ride(prepare=answered(40_000)) is not None
    assert await fit_ride(prepare=answered(40_001)) is None
    assert await fit_ride(turn_with(rates=Rates(read=0.5)), prepare=answered(8_001)) is None
    # What is new is not in the cache.
    before = make_head(converse(talk(1)), "scope", prompt_tokens=2_000)

    def prepare(parts: CompactionParts) -> None:
        before.ledger = BranchLedger(answered_seconds=parts.clock())
        parts.state.heads.hold(before)

    assert await fit_ride(prepare=prepare) is None
    assert await fit_ride(cut=make_cut(9, replaced_tokens=40_000), prepare=prepare) is not None
