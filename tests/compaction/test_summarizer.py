"""Which calls are made for a summary, and what becomes of their replies."""

from dataclasses import replace

import msgspec
import pytest

from gateway.compaction.summary_prompt import CallBudget
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.request import CompactionReason, CompactionRequest, CompactionResult
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Summary
from gateway.hooks import HookReply, PreCompact, SessionStart
from tests.builders.chat import JSON, read, render
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
from tests.builders.riding import RIDDEN, RIDING, note_answer, turn_with

_RECEIVED = receive(4)
_CUT = make_cut(5)
_GOOD = say("It works now.")
_CHEAPER = replace(SUMMARIZING, summary=Summary(model_map=(("toy", "small"),)))


class ToyHook:
    name = "toy"

    def __init__(self, said: HookReply) -> None:
        self._said = said
        self.asked: list[PreCompact] = []

    async def ask(self, before: PreCompact) -> HookReply:
        self.asked.append(before)
        return self._said

    async def tell(self, after: SessionStart) -> None:
        pass


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


async def test_a_good_reply_becomes_the_summary() -> None:
    result, calls = await run(_GOOD)
    assert result.pivot is not None and result.pivot.summary.startswith("It works now.")
    assert (result.calls, result.model, len(calls)) == (1, "toy", 1)


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


async def test_a_server_error_is_retried() -> None:
    result, calls = await run(refuse(500, "oops"), _GOOD)
    assert result.pivot is not None and len(calls) == 2


async def test_a_broken_connection_is_retried() -> None:
    result, calls = await run(OSError("broken"), _GOOD)
    assert result.pivot is not None and len(calls) == 2


async def test_after_a_prompt_that_was_too_long_the_next_one_is_shorter() -> None:
    too_long = refuse(400, "This model's maximum context length is 3000 tokens.")
    result, (first, second) = await run(too_long, _GOOD)
    assert result.pivot is not None
    assert len(second["messages"][-1]["content"]) < 0.8 * len(first["messages"][-1]["content"])


async def test_a_cheaper_model_that_upstream_does_not_serve_gives_way_to_the_conversations_own() -> None:
    unknown = ModelReply(
        404, {"error": {"message": "The model `small` does not exist", "code": "model_not_found"}}
    )
    async with compaction_parts(unknown, say(""), _GOOD) as parts:
        turn = turn_of(_RECEIVED, _CHEAPER)
        result = await summarize(parts, turn)
        assert result.pivot is not None and result.model == "toy"
        # The refused call does not count as a try.
        assert [call["model"] for call in parts.model.calls] == ["small", "toy", "toy"]
        await summarize(parts, turn)
        assert parts.model.calls[-1]["model"] == "toy"


async def test_a_history_that_fits_no_call_is_not_sent() -> None:
    async with compaction_parts(_GOOD) as parts:
        result = await summarize(parts, turn_of(_RECEIVED, limits=Limits(context=1_200)))
        assert parts.model.calls == []
    assert (result.failure, result.calls, result.model) == ("history too big for the summariser", 0, None)


async def test_facts_that_a_summary_leaves_out_are_listed_below_it() -> None:
    asking = {"role": "user", "content": "Read /srv/important.csv again. " * 20}
    replying = {"role": "assistant", "content": "I did."}
    task = {"role": "user", "content": "Sum it up."}
    received = read(render([task, *[replying, asking] * 3, replying, task]))
    async with compaction_parts(_GOOD) as parts:
        result = await parts.summarizer.summarize(
            turn_of(received),
            make_situation(received),
            make_cut(7),
            CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8),
            0,
        )
    assert result.pivot is not None
    assert result.pivot.summary.startswith("It works now.\n\n")
    assert "- /srv/important.csv" in result.pivot.summary


# Hooks


async def test_a_veto_is_a_failure_without_a_call() -> None:
    hook = ToyHook(HookReply(veto=True))
    async with compaction_parts(hooks=(hook,)) as parts:
        result = await summarize(parts)
        assert parts.model.calls == []
    assert (result.failure, result.calls) == ("vetoed", 0)


async def test_a_hook_learns_who_asks_and_how_large_the_conversation_is() -> None:
    hook = ToyHook(HookReply())
    request = CompactionRequest(
        reason=CompactionReason.MANUAL, is_awaited=True, calls=8, trigger="manual", instructions="Keep names."
    )
    async with compaction_parts(hooks=(hook,)) as parts:
        await summarize(parts, request=request)
    (asked,) = hook.asked
    assert (asked.trigger, asked.custom_instructions, asked.pre_tokens) == ("manual", "Keep names.", 9_000)


async def test_the_model_is_told_what_hooks_add() -> None:
    hook = ToyHook(
        HookReply(prompt="Say it briefly.", instructions="Keep numbers.", context=("Branch: main",))
    )
    async with compaction_parts(hooks=(hook,)) as parts:
        await summarize(parts)
        (call,) = parts.model.calls
    prompt = call["messages"][-1]["content"]
    assert "Say it briefly." in prompt and "Summarize." not in prompt
    assert "Keep numbers.\n\nBranch: main" in prompt


async def test_a_retry_beyond_the_budget_is_not_made() -> None:
    tenant = make_limited_tenant("t", summary_calls_per_hour=1)
    turn = msgspec.structs.replace(turn_of(_RECEIVED), tenant=tenant)
    async with compaction_parts(say("It wor", finish_reason="length"), _GOOD) as parts:
        result = await summarize(parts, turn)
        assert (result.failure, result.calls, len(parts.model.calls)) == ("over budget", 1, 1)
        assert parts.summarizer.is_over_budget(turn)


async def test_the_usage_of_all_calls_is_added_up() -> None:
    replies = (
        say("cut", "length", prompt_tokens=50, completion_tokens=9),
        say("It works now.", prompt_tokens=40, completion_tokens=3),
    )
    async with compaction_parts(*replies) as parts:
        result = await summarize(parts)
    assert result.pivot is not None and result.calls == 2
    assert result.usage is not None and result.usage[:2] == (90, 12)


async def test_without_reported_usage_there_is_none() -> None:
    async with compaction_parts(_GOOD) as parts:
        assert (await summarize(parts)).usage is None


# Riding

_HEADED = say("## Goal\nFix it.\n\n## Next\nTest it.", prompt_tokens=9_000, completion_tokens=20)
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


async def test_a_riding_summary_needs_no_other_call() -> None:
    result, (call,) = await ride(_HEADED, _AFTER)
    assert result.pivot is not None and result.pivot.summary.startswith("## Goal")
    assert call["tools"] and call["tool_choice"] == "none"
    assert (result.calls, result.riding_calls, result.model) == (1, 1, "toy")
    assert result.usage == result.riding_usage and result.usage is not None
    assert result.usage.prompt_tokens == 9_000


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


async def test_what_both_kinds_of_calls_used_is_told_apart() -> None:
    answering = say("Sure.", prompt_tokens=9_000, completion_tokens=20)
    result, _ = await ride(answering, _AFTER)
    assert result.usage is not None and result.riding_usage is not None
    assert (result.usage.prompt_tokens, result.riding_usage.prompt_tokens) == (13_000, 9_000)


async def test_after_a_failed_ride_the_next_summaries_are_quoted_at_once() -> None:
    async with compaction_parts(say("Sure."), _AFTER) as parts:
        note_answer(parts)
        await summarize_riding(parts)
        result = await summarize_riding(parts)
        assert (result.calls, result.riding_calls, len(parts.model.calls)) == (1, 0, 3)


async def test_the_size_of_a_ridden_prompt_teaches_nothing_about_quoted_ones() -> None:
    # A ratio that a tokenizer could have, if the message were all of the prompt.
    async with compaction_parts(say("Sure.", prompt_tokens=100, completion_tokens=1), _GOOD) as parts:
        note_answer(parts)
        budget, situation = CallBudget(calls=8), make_situation(RIDDEN, RIDING)
        before = await parts.builder.fit(turn_with(), situation, make_cut(9), budget)
        await summarize_riding(parts)
        assert await parts.builder.fit(turn_with(), situation, make_cut(9), budget) == before


async def test_a_ride_counts_for_the_budget_like_every_call() -> None:
    turn = msgspec.structs.replace(turn_with(), tenant=make_limited_tenant("t", summary_calls_per_hour=1))
    async with compaction_parts(say("Sure."), _AFTER) as parts:
        note_answer(parts)
        result = await summarize_riding(parts, turn)
        assert (result.failure, result.calls, result.riding_calls) == ("over budget", 1, 1)
        parts.clock.now += 3_000
        note_answer(parts)
        result = await summarize_riding(parts, turn)
        assert (result.failure, result.calls, result.riding_calls) == ("over budget", 0, 0)
        assert len(parts.model.calls) == 1


async def test_where_the_budget_has_no_room_for_a_ride_the_history_is_quoted() -> None:
    """And its refusal keeps nothing else from being made."""
    async with compaction_parts(_GOOD) as parts:
        note_answer(parts)
        fitted = await parts.rides.fit(turn_with(), make_situation(RIDDEN, RIDING), make_cut(5))
        quoted = await parts.builder.fit(
            turn_with(), make_situation(RIDDEN, RIDING), make_cut(5), CallBudget(calls=8)
        )
        assert fitted is not None and quoted is not None
        note_answer(parts, prompt_tokens=30_000)
        room = quoted.prompt_tokens + 1
        tenant = make_limited_tenant("t", summary_tokens_per_hour=room)
        turn = msgspec.structs.replace(turn_with(), tenant=tenant)
        result = await summarize_riding(parts, turn, make_cut(5))
        assert result.pivot is not None and (result.calls, result.riding_calls) == (1, 0)
        assert not parts.summarizer.is_over_budget(turn)


async def test_a_ride_that_timed_out_takes_a_try() -> None:
    async with compaction_parts(TimeoutError("late"), say("It wor", "length")) as parts:
        note_answer(parts)
        result = await summarize_riding(parts)
        assert (result.failure, result.calls, result.riding_calls) == ("truncated", 2, 1)
        result = await summarize_riding(parts)
        assert (result.calls, result.riding_calls) == (2, 0)
