"""Which results are shortened: old ones, in batches worth it, and the largest texts of what was refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.prune import (
    PruneThresholds,
    changes_for_free,
    choose_batches,
    choose_results,
    choose_shortening,
)
from gateway.core.compaction.situation import Situation
from gateway.core.economy import Rates
from gateway.core.history.conversation import Conversation, find_open_group, find_tool_names
from gateway.core.history.head import BranchLedger
from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size, View, make_view, shown_tokens
from gateway.core.policy import Compaction, Policy, Pruning
from gateway.core.sizing.calibrated_sizes import CalibratedSizes
from gateway.core.sizing.estimate import Sizes
from tests.decisions.builders import (
    NOTHING,
    bodies,
    calibrate,
    converse,
    make_batch,
    make_loop,
    make_pivot,
    prune_loop,
    read,
    situate,
)


def prune(view: View) -> Sequence[int]:
    return prune_loop(100, Pruning(), PruneThresholds(protect=300, minimum=100), view)


def test_pruning_stops_at_a_mark_and_at_a_pivot() -> None:
    conversation = converse(make_loop(10))
    marked = make_view(None, [make_batch(conversation, [Mark(6)])])
    assert prune(marked) == (8, 12)
    assert prune(View(make_pivot(conversation, 7), {})) == (8, 12)


def test_uncalibrated_pruning_counts_words_alone() -> None:
    conversation = converse(make_loop(10))
    # By our own count each result has 54 tokens, 50 of them words; upstream counts twice as many.
    sizes = calibrate([108.0 if message.results else 10.0 for message in conversation.messages], ratio=2.0)
    for is_calibrated, protect in ((True, 324), (False, 150)):
        pruning = replace(Pruning(), calibrated=is_calibrated)
        for fewer, chosen in ((0, (2, 4, 6, 8, 12)), (1, (2, 4, 6, 8, 12, 14))):
            thresholds = PruneThresholds(protect=protect - fewer, minimum=0)
            assert choose_results(conversation, sizes, NOTHING, pruning, thresholds) == chosen


def draw_case(data: st.DataObject) -> tuple[Conversation, list[float], PruneThresholds]:
    conversation = read(data.draw(bodies(min_turns=2, max_turns=8))).conversation
    count = len(conversation.messages)
    tokens = data.draw(st.lists(st.integers(0, 500).map(float), min_size=count, max_size=count))
    limits = st.integers(0, 600)
    return conversation, tokens, PruneThresholds(protect=data.draw(limits), minimum=data.draw(limits))


@given(st.data(), st.integers(0, 2))
def test_only_finished_unprotected_results_are_chosen_and_only_a_worthwhile_batch(
    data: st.DataObject, keep_turns: int
) -> None:
    conversation, tokens, thresholds = draw_case(data)
    pruning = Pruning(keep_turns=keep_turns)
    chosen = choose_results(conversation, calibrate(tokens), NOTHING, pruning, thresholds)
    names = find_tool_names(conversation)
    assert list(chosen) == sorted(set(chosen))
    assert all(position < find_open_group(conversation) for position in chosen)
    assert all(
        conversation.messages[position].results and "skill" not in names[position] for position in chosen
    )
    assert not chosen or sum(tokens[position] for position in chosen) > thresholds.minimum


@pytest.mark.system(6)
@given(st.data())
def test_pruning_twice_chooses_nothing_more(data: st.DataObject) -> None:
    conversation, tokens, thresholds = draw_case(data)
    chosen = choose_results(conversation, calibrate(tokens), NOTHING, Pruning(), thresholds)
    if not chosen:
        return
    after = make_view(None, [make_batch(conversation, [Mark(position) for position in chosen])])
    assert choose_results(conversation, calibrate(tokens), after, Pruning(), thresholds) == ()


_THRIFTY = replace(Policy(), economy=1.0)
_BY_SIZE = replace(Policy(), economy=0.0)
_CACHED = Rates(write=1.0, read=0.1, output=8.0)
_LEDGER = BranchLedger(base_tokens=4_000.0, reply_tokens=100.0)


def prunes(total: int = 11_500, **fields: Any) -> bool:
    situation: Situation = situate(total, results=0.97, **fields)
    assert situation.thresholds is not None
    return choose_batches(situation, situation.thresholds, total) is not None


def test_without_prices_a_batch_that_is_enough_is_worth_it() -> None:
    assert prunes(policy=_BY_SIZE, rates=_CACHED, ledger=_LEDGER, growth=500.0)
    assert not prunes(11_200, policy=_BY_SIZE, rates=_CACHED, ledger=_LEDGER)
    assert prunes(11_201, policy=_BY_SIZE, rates=_CACHED, ledger=_LEDGER)


def test_a_cold_cache_is_the_time_for_a_batch() -> None:
    assert prunes(8_000, policy=_THRIFTY, rates=_CACHED, ledger=_LEDGER, growth=500.0, is_cold=True)
    assert not prunes(8_000, policy=_BY_SIZE, rates=_CACHED, ledger=_LEDGER, is_cold=True)
    never = replace(_THRIFTY, compaction=Compaction(prune=False))
    assert not prunes(8_000, policy=never, rates=_CACHED, ledger=_LEDGER, is_cold=True)
    large = replace(_THRIFTY, pruning=Pruning(minimum_tokens=9_000, minimum_ratio=1.0))
    assert not prunes(8_000, policy=large, rates=_CACHED, ledger=_LEDGER, is_cold=True)
    assert changes_for_free(situate(8_000, policy=_THRIFTY, is_cold=True))
    assert not changes_for_free(situate(8_000, policy=_BY_SIZE, is_cold=True))


_TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "look"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "b"},
    {"role": "user", "content": "c"},
]
_CONVERSATION = converse(_TALK)
_SIZES = [Size(10, 40), Size(9_000, 36_000), Size(10_000, 40_000), Size(1_000, 4_000)]


def weigh(sizes: list[Size], ratio: float = 1.0) -> CalibratedSizes:
    return CalibratedSizes(
        Sizes(messages=sizes, environment=0), [size.tokens * ratio for size in sizes], 0.0, ratio
    )


_sizes = st.builds(lambda tokens, chars: Size(tokens, chars), st.integers(0, 50_000), st.integers(0, 200_000))


def test_the_largest_length_that_suffices_is_used_for_users_and_results_only() -> None:
    some = choose_shortening(_CONVERSATION, weigh(_SIZES), NOTHING, 1_000)
    assert [mark.position for mark in some] == [2]
    assert _save(some) == pytest.approx(1_000, abs=5)
    more = choose_shortening(_CONVERSATION, weigh(_SIZES), NOTHING, 9_500)
    assert [mark.position for mark in more] == [2, 3]
    assert len({mark.keep_chars for mark in more}) == 1
    assert _save(more) == pytest.approx(9_500, abs=5)


def test_savings_are_measured_in_true_tokens() -> None:
    marks = choose_shortening(_CONVERSATION, weigh(_SIZES, 4.0), NOTHING, 4_000)
    assert _save(marks) == pytest.approx(1_000, abs=5)


def test_nothing_is_cut_if_no_length_suffices_or_nothing_has_to_be_saved() -> None:
    assert choose_shortening(_CONVERSATION, weigh(_SIZES), NOTHING, 10**9) == ()
    assert choose_shortening(_CONVERSATION, weigh(_SIZES), NOTHING, 0) == ()


def test_only_messages_that_may_be_cut_are() -> None:
    marks = choose_shortening(_CONVERSATION, weigh(_SIZES), NOTHING, 500, frozenset({3}))
    assert [mark.position for mark in marks] == [3]


def _save(marks: tuple[Mark, ...]) -> int:
    return sum(_SIZES[mark.position].tokens - shown_tokens(_SIZES[mark.position], mark) for mark in marks)


def test_messages_that_are_shorter_already_or_covered_stay() -> None:
    marked = make_view(None, [make_batch(_CONVERSATION, [Mark(2)])])
    assert [mark.position for mark in choose_shortening(_CONVERSATION, weigh(_SIZES), marked, 500)] == [3]
    covered = make_view(make_pivot(_CONVERSATION, 3), ())
    assert [mark.position for mark in choose_shortening(_CONVERSATION, weigh(_SIZES), covered, 500)] == [3]


@given(bodies(min_turns=1), st.integers(1, 10**6), st.data())
def test_marks_save_the_excess_if_any_length_does(body: bytes, excess: int, data: st.DataObject) -> None:
    conversation = read(body).conversation
    count = len(conversation.messages)
    sizes = data.draw(st.lists(_sizes, min_size=count, max_size=count))
    marks = choose_shortening(conversation, weigh(sizes), NOTHING, excess)
    saved = sum(sizes[mark.position].tokens - shown_tokens(sizes[mark.position], mark) for mark in marks)
    shortest = sum(
        size.tokens - shown_tokens(size, Mark(0, 256))
        for size, message in zip(sizes, conversation.messages, strict=True)
        if message.role in ("user", "tool") and size.chars > 256
    )
    assert saved >= excess - 1 if marks else shortest < excess + 1
    assert all(sizes[mark.position].chars > (mark.keep_chars or 0) for mark in marks)
    assert all(conversation.messages[mark.position].role in ("user", "tool") for mark in marks)
