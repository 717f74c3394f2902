from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.cut import Cut, CutConstraints, choose_cut, is_worthwhile
from gateway.core.history.conversation import Conversation, Trim, find_open_group, is_boundary
from gateway.core.history.view import Size
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds
from gateway.core.policy import Keep, Policy
from gateway.core.sizing.calibrated_sizes import CalibratedSizes
from gateway.core.sizing.estimate import Sizes
from tests.builders.chat import bodies, converse, make_pivot, make_tool_talk, pivots, read
from tests.examples import examples

# Drawing whole conversations is slow.
few = examples(20, exhaustive=40)
_CONVERSATION = converse(make_tool_talk(10))
_SIZES = [Size(100, 400), *[Size(10, 40), Size(990, 3_960)] * 10]


def lines_at(window: int) -> Thresholds:
    lines = choose_thresholds(Policy(), Limits(context=window), RequestSize())
    assert lines is not None
    return lines


def weigh(sizes: list[Size], environment: int = 0, ratio: float = 1.0) -> CalibratedSizes:
    whole = Sizes(messages=sizes, environment=environment)
    return CalibratedSizes(whole, [size.tokens * ratio for size in sizes], environment * ratio, ratio)


def cut(window: int = 16_000, keep: Keep | None = None, ratio: float = 1.0, **parts: Any) -> Cut | None:
    whole = CutConstraints(**({"base": None, "must_keep": find_open_group(_CONVERSATION)} | parts))
    return choose_cut(_CONVERSATION, weigh(_SIZES, 0, ratio), lines_at(window), keep or Keep(), whole)


def test_the_tail_takes_whole_groups_while_they_fit() -> None:
    # tail = 1,800 of a 16K window: one group of 1,000; the opening ends at 1.
    assert cut() == Cut(base=None, start=1, covers=19, replaced_tokens=9_000, cap_tokens=1_600)
    # 24K: tail = 2,700, two groups.
    found = cut(24_000)
    assert found is not None and (found.covers, found.replaced_tokens) == (17, 8_000)


def test_sizes_are_true_tokens() -> None:
    found = cut(ratio=0.5)
    assert found is not None and (found.covers, found.replaced_tokens) == (15, 3_500)


def test_a_new_cut_updates_the_summary_before_it() -> None:
    base = make_pivot(_CONVERSATION, 9, tokens=300)
    found = cut(base=base)
    assert found is not None
    assert (found.base, found.start, found.covers, found.replaced_tokens) == (base, 9, 19, 5_300)


def test_without_an_opening_the_summary_replaces_everything_from_the_start() -> None:
    found = cut(keep=Keep(opening=False))
    assert found is not None and (found.start, found.replaced_tokens) == (0, 9_100)


def test_a_number_of_messages_is_kept_without_splitting_a_group() -> None:
    found = cut(keep=Keep(tail_messages=10))
    assert found is not None and found.covers == 11
    odd = cut(keep=Keep(tail_messages=9))
    assert odd is not None and odd.covers == 11


@pytest.mark.system(10)
def test_a_tail_that_leaves_no_room_to_grow_is_reduced_to_the_target() -> None:
    """Otherwise every request would compact again."""
    # 16K: the target of 6,000, less opening and summary, is 4,300; half of the way to 12,000 makes it 7,300.
    assert (kept := cut(keep=Keep(tail_messages=14))) is not None and kept.covers == 7
    # Eight groups of 1,000 are too many, so those that fit 4,300 stay.
    found = cut(keep=Keep(tail_messages=16))
    assert found is not None and found.covers == 13


def test_there_is_no_cut_without_messages_to_replace() -> None:
    assert cut(1_000_000) is None
    assert cut(base=make_pivot(_CONVERSATION, 19)) is None
    assert cut(24_000, keep=Keep(tail_messages=99)) is None


def test_the_open_group_stays_whatever_its_size() -> None:
    found = cut(4_000)
    assert found is not None and found.covers == find_open_group(_CONVERSATION)


def test_a_large_opening_stays_whole_and_the_summary_shrinks() -> None:
    sizes = [Size(9_000, 36_000), *_SIZES[1:]]
    parts = CutConstraints(base=None, must_keep=19)
    found = choose_cut(_CONVERSATION, weigh(sizes), lines_at(16_000), Keep(), parts)
    assert found is not None and found.cap_tokens == 1_600
    tight = choose_cut(_CONVERSATION, weigh(sizes, 11_000), lines_at(16_000), Keep(), parts)
    assert tight is not None and tight.cap_tokens == 320


def test_a_summary_may_take_what_is_meant_for_turns_as_far_as_it_fits() -> None:
    lines = replace(lines_at(16_000), summary=1_024)
    parts = CutConstraints(base=None, must_keep=19)
    found = choose_cut(_CONVERSATION, weigh(_SIZES), lines, Keep(), parts)
    assert found is not None and (found.cap_tokens, found.spare_tokens) == (1_024, 576)
    # 12,000 tokens without an opening of 100 and a tail of 1,000 leave 1,200 for a summary.
    tight = choose_cut(_CONVERSATION, weigh(_SIZES, 9_700), lines, Keep(), parts)
    assert tight is not None and (tight.cap_tokens, tight.spare_tokens) == (1_024, 176)


@pytest.mark.parametrize(
    ("folded", "cap", "minimum", "expected"),
    [
        (1_000, 400, 600, True),
        (1_000, 400, 601, False),
        (100, 4_096, 10, True),
        (100, 4_096, 11, False),
    ],
)
def test_a_cut_is_worthwhile_if_it_frees_enough_even_with_the_longest_summary(
    folded: int, cap: int, minimum: float, expected: bool
) -> None:
    made = Cut(base=None, start=0, covers=1, replaced_tokens=folded, cap_tokens=cap)
    assert is_worthwhile(made, minimum) == expected


def test_expected_growth_is_subtracted_from_the_tail() -> None:
    # 24K: tail = 2,700; with 1,000 of growth only one group of 1,000 stays.
    found = cut(24_000, lead=1_000)
    assert found is not None and found.covers == 19


def test_a_cut_lies_where_a_later_request_finds_it() -> None:
    received = tuple(range(len(_CONVERSATION.messages)))
    for known_from, expected, of_six in ((1, 17, 15), (16, 17, 17), (18, 19, 19), (21, 19, 19)):
        trimmed = replace(_CONVERSATION, trim=Trim(received, known_from))
        constraints = CutConstraints(base=None, must_keep=find_open_group(trimmed))
        found = choose_cut(trimmed, weigh(_SIZES), lines_at(24_000), Keep(), constraints)
        assert found is not None and found.covers == expected
        six = choose_cut(trimmed, weigh(_SIZES), lines_at(24_000), Keep(tail_messages=6), constraints)
        assert six is not None and six.covers == of_six


def draw_case(data: st.DataObject) -> tuple[Conversation, CalibratedSizes, Thresholds, CutConstraints]:
    conversation = read(data.draw(bodies(min_turns=2, max_turns=8))).conversation
    count = len(conversation.messages)
    size = st.builds(Size, st.integers(0, 5_000), st.integers(0, 20_000))
    sizes = data.draw(st.lists(size, min_size=count, max_size=count))
    base = data.draw(pivots(conversation))
    must_keep = data.draw(st.sampled_from([find_open_group(conversation), count]))
    calibrated = weigh(sizes, data.draw(st.integers(0, 20_000)), data.draw(st.floats(0.2, 8.0)))
    parts = CutConstraints(base=base, must_keep=must_keep, lead=data.draw(st.sampled_from([0, 500])))
    return conversation, calibrated, lines_at(data.draw(st.integers(4_000, 100_000))), parts


@few
@given(st.data(), st.booleans(), st.integers(0, 6))
def test_a_cut_lies_between_groups_keeps_the_open_one_and_saves_tokens(
    data: st.DataObject, opening: bool, tail_messages: int
) -> None:
    conversation, calibrated, lines, parts = draw_case(data)
    keep = Keep(opening=opening, tail_messages=tail_messages)
    found = choose_cut(conversation, calibrated, lines, keep, parts)
    base, count = parts.base, len(conversation.messages)
    if found is None:
        return
    assert is_boundary(conversation, found.covers)
    assert found.start < found.covers <= parts.must_keep
    assert found.start >= (base.covers if base else 0)
    assert found.start >= (conversation.opening_end if opening else 0)
    assert count - found.covers >= min(tail_messages, count - parts.must_keep)
    assert 0 < found.cap_tokens <= lines.summary


@few
@given(st.data())
def test_a_cut_reaches_the_target_if_the_fixed_parts_leave_room(data: st.DataObject) -> None:
    conversation, calibrated, lines, parts = draw_case(data)
    found = choose_cut(conversation, calibrated, lines, Keep(), parts)
    if found is None or found.covers == parts.must_keep:
        return
    opening = sum(calibrated.messages[: conversation.opening_end])
    tail = sum(calibrated.messages[found.covers :])
    kept = calibrated.environment + min(opening, lines.opening) + found.cap_tokens + tail
    assert kept + parts.lead <= lines.target + 1
