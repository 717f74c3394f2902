"""Whether an answer is a summary, which model makes it, and how many failures are borne."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.plan import (
    SMALLEST_REPLY_TOKENS,
    UNCHANGED,
    Plan,
    choose_output,
    fingerprint_plan,
)
from gateway.core.compaction.summary import (
    Accepted,
    Candidate,
    Rejected,
    SummaryBounds,
    find_edit_flaw,
    find_headings,
    judge_summary,
    wants_riding,
)
from gateway.core.history.pivot import Batch, Mark, Pivot
from gateway.core.policy import Policy, Prompts, Summary
from gateway.core.sizing.estimate import Estimate
from tests.decisions.builders import converse, make_recall

_GOOD = Candidate(text=" We fixed it.\n", finish_reason="stop", has_tool_calls=False, has_error=False)
_TEMPLATE = "Write it.\n\n## Goal\nWhat?\n\n## Next step\nThen?\n\n### Files \n#no heading\n- ## nor this"


def test_headings_of_a_template_are_its_lines_with_marks() -> None:
    assert find_headings(_TEMPLATE) == ("goal", "next step", "files")
    assert find_headings("Summarize it all.") == ()


def test_a_reply_without_the_wanted_headings_is_no_summary() -> None:
    bounds = SummaryBounds(replaced_tokens=1_000, cap_tokens=400, headings=("goal", "next step"))
    assert judge_summary(_GOOD, 100, bounds) == Rejected("no headings")
    thought = replace(_GOOD, text="<think>## Goal\n## Next step</think>We fixed it.")
    assert judge_summary(thought, 100, bounds) == Rejected("no headings")
    told = replace(_GOOD, text="## Goal\nFix it.")
    assert judge_summary(told, 100, bounds) == Accepted(told.text, 100)


def bounds(replaced: int = 10_000, cap: int = 1_000) -> SummaryBounds:
    return SummaryBounds(replaced_tokens=replaced, cap_tokens=cap)


def test_the_cap_has_the_tolerance_of_a_models_reply() -> None:
    assert find_edit_flaw("Text.", 1_250, bounds()) is None
    flaw = find_edit_flaw("Text.", 1_251, bounds())
    assert flaw is not None and "1251 tokens; at most 1250" in flaw


def test_a_text_that_is_not_smaller_than_what_it_replaces_is_refused() -> None:
    assert find_edit_flaw("Text.", 900, bounds(replaced=1_000)) is None
    flaw = find_edit_flaw("Text.", 901, bounds(replaced=1_000))
    assert flaw is not None and "10 % smaller" in flaw


RIDING = Policy(
    prompts=Prompts(
        question="What did we do?",
        instruction="Summarize.\n\n## Goal\nWhat?\n\n## Next\nThen?",
        resume="Go on.",
        ride="Stop. {kept} stay.",
        dropped="(dropped)",
    )
)


@pytest.mark.parametrize(
    "summary",
    [
        Summary(ride="never"),
        Summary(model="small"),
        Summary(model_map=(("toy", "small"),)),
        Summary(upstream="other"),
        Summary(method="digest"),
    ],
)
def test_a_policy_may_want_no_ride_or_another_model(summary: Summary) -> None:
    assert wants_riding(RIDING, "toy", "toy")
    assert not wants_riding(replace(RIDING, summary=summary), "toy", "toy")


@pytest.mark.parametrize(
    "prompts", [replace(RIDING.prompts, instruction="Sum up."), replace(RIDING.prompts, ride=" ")]
)
def test_without_headings_or_a_text_for_it_nothing_rides(prompts: Prompts) -> None:
    assert not wants_riding(replace(RIDING, prompts=prompts), "toy", "toy")


_TOKENS = st.integers(0, 2_000_000)


@given(_TOKENS, _TOKENS, _TOKENS, _TOKENS)
def test_clamping_never_raises_the_output_and_is_idempotent(
    requested: int, context: int, tokens: int, unsure: int
) -> None:
    estimate = Estimate(tokens, unsure)
    clamped = choose_output(requested, context, estimate)
    if clamped is None:
        return
    assert SMALLEST_REPLY_TOKENS <= clamped < requested
    assert clamped == SMALLEST_REPLY_TOKENS or tokens + unsure + clamped <= context
    assert choose_output(clamped, context, estimate) is None


PIVOT = Pivot(
    owner="t",
    key="ab",
    covers=4,
    opening_end=1,
    summary="S",
    question=None,
    resume="",
    tokens=1,
    opening_tokens=1,
    saved_tokens=1,
    created_seconds=1.0,
)
BATCH = Batch(owner="t", key="cd", length=6, placeholder="…", marks=(Mark(5, None),), saved_tokens=1)
PLAN = Plan(pivot=PIVOT, batches=(BATCH,), new_batch=None, received=9, sent=5, output=None)


def test_a_plan_that_changes_nothing_has_none() -> None:
    assert fingerprint_plan(replace(PLAN, pivot=None, batches=())) == UNCHANGED


def test_sizes_and_the_length_of_the_reply_do_not_count() -> None:
    other = replace(PLAN, received=10, sent=6, output=7, new_batch=BATCH)
    assert fingerprint_plan(other) == fingerprint_plan(PLAN)


def test_everything_that_changes_the_messages_counts() -> None:
    others = [
        replace(PLAN, pivot=None),
        replace(PLAN, recalls=(make_recall(converse([]), 0),)),
        replace(PLAN, batches=()),
        replace(PLAN, batches=(BATCH, BATCH)),
        replace(PLAN, pivot=replace(PIVOT, summary="T")),
        replace(PLAN, pivot=replace(PIVOT, created_seconds=2.0)),
        replace(PLAN, pivot=replace(PIVOT, key="ac", covers=5)),
        replace(PLAN, pivot=replace(PIVOT, question="Q", summary="S")),
        replace(PLAN, batches=(replace(BATCH, marks=(Mark(5, 100),)),)),
        replace(PLAN, batches=(replace(BATCH, placeholder=""),)),
    ]
    found = [fingerprint_plan(plan) for plan in (PLAN, *others)]
    assert len(set(found)) == len(found)
