from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.manual import (
    LONGEST_INSTRUCTIONS_CHARS,
    Compacted,
    Failed,
    InProgress,
    NothingToCompact,
    choose_manual_cut,
    choose_remaining_cut,
    describe_outcome,
    may_be_command,
    measure_compaction,
    parse_compact,
)
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import find_open_group, is_boundary
from gateway.core.history.message import Call, Message, Role
from gateway.core.history.view import Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Keep, Policy
from gateway.core.sizing.estimate import Calibration, Known
from tests.builders.chat import JSON, bodies, make_pivot, measure_sizes, read
from tests.core.compaction.test_decision import situate
from tests.examples import examples

few = examples(20, exhaustive=60)


def test_far_below_the_thresholds_everything_but_the_open_group_is_replaced() -> None:
    situation = situate(3_000, limits=Limits(context=128_000))
    cut = choose_manual_cut(situation)
    assert cut is not None
    assert (cut.start, cut.covers) == (1, find_open_group(situation.conversation))
    assert cut.cap_tokens < cut.replaced_tokens / 1.9


def test_the_tail_stays_if_there_is_enough_to_replace() -> None:
    situation = situate(10_000, turns=40)
    cut = choose_manual_cut(situation)
    assert cut is not None and cut.covers < find_open_group(situation.conversation)
    assert sum(size.tokens for size in situation.sizes.messages[cut.covers :]) <= 1_800


def test_it_needs_no_known_window() -> None:
    assert choose_manual_cut(situate(400_000, limits=Limits())) is not None


def test_messages_that_a_policy_keeps_are_kept() -> None:
    cut = choose_manual_cut(situate(3_000, policy=Policy(keep=Keep(tail_messages=6))))
    assert cut is not None and cut.covers == 15


def test_messages_that_a_pivot_covers_are_not_replaced_again() -> None:
    situation = situate(3_000)
    whole = choose_manual_cut(situation)
    assert whole is not None
    made = make_pivot(situation.conversation, whole.covers)
    assert choose_remaining_cut(situation, made, whole.covers) is None
    part = make_pivot(situation.conversation, 5)
    rest = choose_remaining_cut(situation, part, whole.covers)
    assert rest is not None and (rest.base, rest.start, rest.covers) == (part, 5, whole.covers)


def test_a_few_words_are_not_worth_a_summary() -> None:
    situation = situate(3_000)
    whole = choose_manual_cut(situation)
    assert whole is not None
    most = make_pivot(situation.conversation, whole.covers)
    assert choose_remaining_cut(situation, most, find_open_group(situation.conversation)) is None
    few_words = replace(situation.sizes, messages=[Size(5, 20)] * len(situation.sizes.messages))
    assert choose_manual_cut(replace(situation, sizes=few_words)) is None


def test_a_compaction_in_several_calls_is_measured_as_one() -> None:
    situation = situate(3_000)
    earlier = make_pivot(situation.conversation, 5, saved_tokens=700)
    cut = choose_manual_cut(replace(situation, sticky=earlier, pivots=(earlier,)))
    assert cut is not None and cut.base == earlier
    pivot = make_pivot(situation.conversation, cut.covers, saved_tokens=2_000)
    before, after = situation.count_with(earlier), situation.count_after(earlier, pivot)
    assert measure_compaction(situation, cut, pivot) == Compacted(cut.covers - 5, before, after)
    assert 0 < after < before


@few
@given(bodies(), st.booleans())
def test_no_cut_separates_a_call_from_its_result_or_takes_the_open_group(body: bytes, opening: bool) -> None:
    received = read(body)
    fields: JSON = {"policy": Policy(keep=Keep(opening=opening)), "sizes": measure_sizes(received)}
    cut = choose_manual_cut(_situate(received.conversation, **fields))
    if cut is not None:
        assert cut.start < cut.covers <= find_open_group(received.conversation)
        assert is_boundary(received.conversation, cut.covers)


def _situate(conversation: Any, **fields: Any) -> Situation:
    return Situation(
        owner="t",
        conversation=conversation,
        limits=Limits(),
        requested=None,
        growth=0.0,
        known=Known(head=None, head_view=View(None, {}), calibration=Calibration()),
        sticky=None,
        pivots=(),
        batches=(),
        may_compact=True,
        **fields,
    )


def make_message(role: Role = "user", **fields: object) -> Message:
    return Message(role, b"k", b"d", 10, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "instructions"),
    [
        ("/compact", ""),
        (" \n/compact\n ", ""),
        ("/compact Keep ticket numbers.", "Keep ticket numbers."),
        ("/compact\tKeep\n\n  names. ", "Keep\n\n  names."),
        ("/compact /compact", "/compact"),
        ("/compacted", None),
        ("/compact: all", None),
        ("/Compact", None),
        ("//compact", None),
        ("compact", None),
        ("please /compact", None),
        ("Look:\n/compact", None),
        ("", None),
        (" \n", None),
    ],
)
def test_a_command_is_the_whole_text(text: str, instructions: str | None) -> None:
    assert parse_compact(text) == instructions


def test_a_text_longer_than_the_longest_instructions_is_not_a_command() -> None:
    longest = "x" * LONGEST_INSTRUCTIONS_CHARS
    assert parse_compact(f"/compact {longest}") == longest
    assert parse_compact(f"/compact {longest}x") is None


@given(st.text())
def test_any_text_can_be_parsed_and_its_instructions_are_part_of_it(text: str) -> None:
    instructions = parse_compact(text)
    assert instructions is None or (text.split()[0] == "/compact" and instructions in text)
    if text.strip():
        assert parse_compact(f"/compact {text}") == text.strip()


def test_only_a_text_of_a_user_can_be_a_command() -> None:
    assert may_be_command(make_message())
    assert not may_be_command(make_message("assistant", calls=(Call("1", "look"),)))
    assert not may_be_command(make_message("tool", results=("1",)))
    assert not may_be_command(make_message(results=("1",)))
    assert not may_be_command(make_message(has_media=True))
    assert not may_be_command(make_message("system"))


def test_the_reply_to_a_command_names_the_outcome() -> None:
    assert describe_outcome(Compacted(24, 31_200, 6_400)) == (
        "Compacted: 24 earlier messages are now a summary. About 31,200 tokens before, 6,400 after."
    )
    assert (
        describe_outcome(Failed("truncated"))
        == "The compaction failed (truncated). The conversation is unchanged."
    )
    assert len({describe_outcome(outcome) for outcome in (NothingToCompact(), InProgress(), Failed(""))}) == 3
