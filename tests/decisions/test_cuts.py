"""Where a summary ends: cuts, those on demand, and chunks."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.chunks import (
    CHUNKED,
    Quoting,
    ReplacedHistory,
    find_chunk_attempts,
    find_whole_attempts,
    shrink_cut,
)
from gateway.core.compaction.cut import Cut, choose_cut
from gateway.core.compaction.manual import (
    LONGEST_INSTRUCTIONS_CHARS,
    Compacted,
    choose_manual_cut,
    choose_remaining_cut,
    may_be_command,
    measure_compaction,
    parse_compact,
)
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import Trim, find_open_group, is_boundary
from gateway.core.history.message import Call, Message, Role
from gateway.core.history.pivot import Pivot
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.history.view import Size
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds
from gateway.core.policy import Keep, Policy
from gateway.core.sizing.calibrated_sizes import CalibratedSizes
from gateway.core.sizing.estimate import Calibration, Known, Sizes
from tests.decisions.builders import (
    JSON,
    NOTHING,
    bodies,
    conversations,
    converse,
    make_pivot,
    make_situation,
    make_tool_talk,
    measure_sizes,
    pivots,
    read,
    situate,
)
from tests.examples import examples

# Drawing whole conversations is slow.
few = examples(20, exhaustive=40)
_CONVERSATION = converse(make_tool_talk(10))
_SIZES = [Size(100, 400), *[Size(10, 40), Size(990, 3_960)] * 10]


def lines_at(window: int) -> Thresholds:
    lines = choose_thresholds(Policy(), Limits(context=window), RequestSize())
    assert lines is not None
    return lines


def weigh(sizes: list[Size], environment: int = 0, ratio: float = 1.0, **fields: Any) -> Situation:
    known = Known(head=None, head_view=NOTHING, calibration=Calibration(ratio, 1))
    whole = Sizes(messages=sizes, environment=environment)
    return make_situation(**({"conversation": _CONVERSATION, "sizes": whole, "known": known} | fields))


def cut(window: int = 16_000, keep: Keep | None = None, ratio: float = 1.0, **parts: Any) -> Cut | None:
    situation = weigh(_SIZES, 0, ratio, policy=Policy(keep=keep or Keep()))
    whole: JSON = {"base": None, "must_keep": find_open_group(_CONVERSATION)} | parts
    return choose_cut(situation, lines_at(window), **whole)


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
    # What is expected to be added counts, too: 7,000 are exactly as many as fit beside 300.
    exact = [cut(keep=Keep(tail_messages=14), lead=lead) for lead in (300, 301)]
    assert [each.covers for each in exact if each is not None] == [7, 15]


def test_there_is_no_cut_without_messages_to_replace() -> None:
    assert cut(1_000_000) is None
    assert cut(base=make_pivot(_CONVERSATION, 19)) is None
    assert cut(24_000, keep=Keep(tail_messages=99)) is None


def test_a_large_opening_stays_whole_and_the_summary_shrinks() -> None:
    sizes = [Size(9_000, 36_000), *_SIZES[1:]]
    found = choose_cut(weigh(sizes), lines_at(16_000), None, 19)
    assert found is not None and found.cap_tokens == 1_600
    tight = choose_cut(weigh(sizes, 11_000), lines_at(16_000), None, 19)
    assert tight is not None and tight.cap_tokens == 320


def test_a_summary_may_take_what_is_meant_for_turns_as_far_as_it_fits() -> None:
    lines = replace(lines_at(16_000), summary=1_024)
    found = choose_cut(weigh(_SIZES), lines, None, 19)
    assert found is not None and (found.cap_tokens, found.spare_tokens) == (1_024, 576)
    # 12,000 tokens without an opening of 100 and a tail of 1,000 leave 1,200 for a summary.
    tight = choose_cut(weigh(_SIZES, 9_700), lines, None, 19)
    assert tight is not None and (tight.cap_tokens, tight.spare_tokens) == (1_024, 176)


def test_expected_growth_is_subtracted_from_the_tail() -> None:
    # 24K: tail = 2,700; with 1,000 of growth only one group of 1,000 stays.
    found = cut(24_000, lead=1_000)
    assert found is not None and found.covers == 19


def test_a_cut_lies_where_a_later_request_finds_it() -> None:
    received = tuple(range(len(_CONVERSATION.messages)))
    for known_from, expected, of_six in ((1, 17, 15), (16, 17, 17), (18, 19, 19), (21, 19, 19)):
        trimmed = replace(_CONVERSATION, trim=Trim(received, known_from))
        shared = lines_at(24_000), None, find_open_group(trimmed)
        found = choose_cut(weigh(_SIZES, conversation=trimmed), *shared)
        assert found is not None and found.covers == expected
        keeps_six = weigh(_SIZES, conversation=trimmed, policy=Policy(keep=Keep(tail_messages=6)))
        six = choose_cut(keeps_six, *shared)
        assert six is not None and six.covers == of_six


# A situation, its thresholds, a base, what must be kept and the lead.
Case = tuple[Situation, Thresholds, Pivot | None, int, int]


def draw_case(data: st.DataObject, keep: Keep | None = None) -> Case:
    conversation = read(data.draw(bodies(min_turns=2, max_turns=8))).conversation
    count = len(conversation.messages)
    size = st.builds(Size, st.integers(0, 5_000), st.integers(0, 20_000))
    sizes, base = data.draw(st.lists(size, min_size=count, max_size=count)), data.draw(pivots(conversation))
    must_keep = data.draw(st.sampled_from([find_open_group(conversation), count]))
    environment, ratio = data.draw(st.integers(0, 20_000)), data.draw(st.floats(0.2, 8.0))
    policy, lead = Policy(keep=keep or Keep()), data.draw(st.sampled_from([0, 500]))
    situation = weigh(sizes, environment, ratio, conversation=conversation, policy=policy)
    return situation, lines_at(data.draw(st.integers(4_000, 100_000))), base, must_keep, lead


@few
@given(st.data(), st.booleans(), st.integers(0, 6))
def test_a_cut_lies_between_groups_keeps_the_open_one_and_saves_tokens(
    data: st.DataObject, opening: bool, tail_messages: int
) -> None:
    case = draw_case(data, Keep(opening=opening, tail_messages=tail_messages))
    found, (situation, lines, base, must_keep, _) = choose_cut(*case), case
    conversation, count = situation.conversation, len(situation.conversation.messages)
    if found is None:
        return
    assert is_boundary(conversation, found.covers)
    assert found.start < found.covers <= must_keep
    assert found.start >= (base.covers if base else 0)
    assert found.start >= (conversation.opening_end if opening else 0)
    assert count - found.covers >= min(tail_messages, count - must_keep)
    assert 0 < found.cap_tokens <= lines.summary


@few
@given(st.data())
def test_a_cut_reaches_the_target_if_the_fixed_parts_leave_room(data: st.DataObject) -> None:
    case = draw_case(data)
    found, (situation, lines, _, must_keep, lead) = choose_cut(*case), case
    if found is None or found.covers == must_keep:
        return
    tokens, environment = situation.calibrated.messages, situation.calibrated.environment
    opening = sum(tokens[: situation.conversation.opening_end])
    kept = environment + min(opening, lines.opening) + found.cap_tokens + sum(tokens[found.covers :])
    assert kept + lead <= lines.target + 1


def make_calibrated(count: int) -> CalibratedSizes:
    sizes = Sizes(messages=[Size(10, 40)] * count, environment=0)
    return CalibratedSizes(sizes, [10.0] * count, 0.0, 1.0)


def make_cut(start: int, covers: int) -> Cut:
    return Cut(base=None, start=start, covers=covers, replaced_tokens=10 * (covers - start), cap_tokens=5)


def make_history(messages: list[JSON], chars: int = 40) -> ReplacedHistory:
    conversation = converse(messages)
    count = len(conversation.messages)
    covers = max((at for at in range(1, count + 1) if is_boundary(conversation, at)), default=count)
    entries = [
        TranscriptEntry(message.role, "x " * (chars // 2), (), 0, is_result=message.role == "tool")
        for message in conversation.messages[:covers]
    ]
    return ReplacedHistory(conversation, make_cut(0, covers), entries, [Size(chars // 2, chars)] * covers)


def make_chain(turns: int) -> list[JSON]:
    """Turns of a call and its result."""
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turn: list[JSON] = [
        {"role": "assistant", "content": "Now.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
    ]
    return [{"role": "user", "content": "Go."}, *(turn * turns)]


ROOMS = st.floats(-1_000, 100_000)


@given(conversations(min_turns=1), ROOMS, st.integers(0, 9), st.sampled_from([0, 40, 9_000]))
def test_a_chunk_ends_at_a_boundary_inside_the_cut(
    messages: list[JSON], room: float, calls: int, chars: int
) -> None:
    history = make_history(messages, chars)
    attempts = [*find_whole_attempts(history, room), *find_chunk_attempts(history, room, calls)]
    for attempt in attempts:
        part = shrink_cut(make_calibrated(len(history.conversation.messages)), history.cut, attempt.covers)
        assert 0 < part.covers <= history.cut.covers
        assert is_boundary(history.conversation, part.covers)
        assert part.replaced_tokens == 10 * part.covers


def test_quotes_are_shorter_if_fewer_calls_are_left() -> None:
    history = make_history(make_chain(100), chars=10_000)
    chosen = [next(find_chunk_attempts(history, 20_000, calls)).quoting for calls in (100, 20, 8, 1)]
    levels = [CHUNKED.index(quoting) for quoting in chosen]
    assert levels == sorted(levels)
    assert (chosen[0], chosen[-1]) == (Quoting(2_000), CHUNKED[-1])


def test_a_history_that_fits_the_calls_needs_no_more_chunks_than_calls() -> None:
    history = make_history(make_chain(200), chars=1_000)
    covers = calls = 0
    while covers < history.cut.covers:
        cut = make_cut(covers, history.cut.covers)
        rest = ReplacedHistory(history.conversation, cut, history.messages[covers:], history.sizes[covers:])
        covers = next(find_chunk_attempts(rest, 20_000, 8 - calls)).covers
        calls += 1
    assert calls <= 8


few_of_manual = examples(20, exhaustive=60)


def test_far_below_the_thresholds_everything_but_the_open_group_is_replaced() -> None:
    situation = situate(3_000, limits=Limits(context=128_000))
    cut = choose_manual_cut(situation)
    assert cut is not None
    assert (cut.start, cut.covers) == (1, find_open_group(situation.conversation))
    assert cut.cap_tokens < cut.replaced_tokens / 1.9


def test_messages_that_a_pivot_covers_are_not_replaced_again() -> None:
    situation = situate(3_000)
    whole = choose_manual_cut(situation)
    assert whole is not None
    made = make_pivot(situation.conversation, whole.covers)
    assert choose_remaining_cut(situation, made, whole.covers) is None
    part = make_pivot(situation.conversation, 5)
    rest = choose_remaining_cut(situation, part, whole.covers)
    assert rest is not None and (rest.base, rest.start, rest.covers) == (part, 5, whole.covers)


def test_a_compaction_in_several_calls_is_measured_as_one() -> None:
    situation = situate(3_000)
    earlier = make_pivot(situation.conversation, 5, saved_tokens=700)
    cut = choose_manual_cut(replace(situation, sticky=earlier, pivots=(earlier,)))
    assert cut is not None and cut.base == earlier
    pivot = make_pivot(situation.conversation, cut.covers, saved_tokens=2_000)
    before, after = situation.count_with(earlier), situation.count_after(earlier, pivot)
    assert measure_compaction(situation, cut, pivot) == Compacted(cut.covers - 5, before, after)
    assert 0 < after < before


@few_of_manual
@given(bodies(), st.booleans())
def test_no_cut_separates_a_call_from_its_result_or_takes_the_open_group(body: bytes, opening: bool) -> None:
    received = read(body)
    fields: JSON = {"policy": Policy(keep=Keep(opening=opening)), "sizes": measure_sizes(received)}
    cut = choose_manual_cut(make_situation(conversation=received.conversation, limits=Limits(), **fields))
    if cut is not None:
        assert cut.start < cut.covers <= find_open_group(received.conversation)
        assert is_boundary(received.conversation, cut.covers)


def make_message(role: Role = "user", **fields: object) -> Message:
    return Message(role, b"k", b"d", 10, **fields)  # type: ignore[arg-type]


def test_a_text_longer_than_the_longest_instructions_is_not_a_command() -> None:
    longest = "x" * LONGEST_INSTRUCTIONS_CHARS
    assert parse_compact(f"/compact {longest}") == longest
    assert parse_compact(f"/compact {longest}x") is None


def test_only_a_text_of_a_user_can_be_a_command() -> None:
    assert may_be_command(make_message())
    assert not may_be_command(make_message("assistant", calls=(Call("1", "look"),)))
    assert not may_be_command(make_message("tool", results=("1",)))
    assert not may_be_command(make_message(results=("1",)))
    assert not may_be_command(make_message(has_media=True))
    assert not may_be_command(make_message("system"))
