"""A history that one call cannot hold is summarized in chunks of whole groups."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.chunks import (
    CHUNKED,
    WHOLE,
    Quoting,
    ReplacedHistory,
    find_chunk_attempts,
    find_whole_attempts,
    shrink_cut,
)
from gateway.core.compaction.cut import Cut
from gateway.core.history.conversation import is_boundary
from gateway.core.history.transcript import TranscriptEntry, render_transcript
from gateway.core.history.view import Size
from gateway.core.sizing.calibrated_sizes import CalibratedSizes
from gateway.core.sizing.estimate import Sizes
from tests.builders.chat import JSON, conversations, converse


def make_calibrated(count: int) -> CalibratedSizes:
    sizes = Sizes(messages=[Size(10, 40)] * count, environment=0)
    return CalibratedSizes(sizes, [10.0] * count, 0.0, 1.0)


def make_cut(start: int, covers: int) -> Cut:
    return Cut(
        base=None,
        start=start,
        covers=covers,
        replaced_tokens=10 * (covers - start),
        cap_tokens=5,
    )


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


@given(conversations(min_turns=1), ROOMS, st.integers(1, 9))
def test_each_chunk_is_no_larger_than_the_one_tried_before(
    messages: list[JSON], room: float, calls: int
) -> None:
    ends = [attempt.covers for attempt in find_chunk_attempts(make_history(messages), room, calls)]
    assert ends and ends == sorted(ends, reverse=True)


def test_a_history_that_fits_is_first_tried_whole_and_unshortened() -> None:
    history = make_history(make_chain(10))
    assert [attempt.quoting for attempt in find_whole_attempts(history, 10_000)] == list(WHOLE)


def test_a_history_many_times_too_large_is_never_tried_whole() -> None:
    assert list(find_whole_attempts(make_history(make_chain(400)), 1_000)) == []


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


def test_the_shortest_quotes_omit_results_and_keep_texts_of_people() -> None:
    entries = [
        TranscriptEntry("user", "Keep the key.", (), 0),
        TranscriptEntry("assistant", "", (("look", '{"at":1}'),), 0),
        TranscriptEntry("tool", "seen", (), 0, is_result=True),
    ]
    brief = CHUNKED[-1]
    assert render_transcript(entries, brief.tool_chars, brief.text_chars) == (
        "<conversation>\n[user]: Keep the key.\n\n[assistant calls look]\n</conversation>"
    )


def test_quotes_become_shorter_step_by_step_and_texts_of_people_last() -> None:
    limits = [quoting.tool_chars for quoting in CHUNKED if quoting.tool_chars is not None]
    assert limits == sorted(limits, reverse=True)
    assert all(quoting.text_chars is None for quoting in (*WHOLE, *CHUNKED[:3]))


def test_each_result_of_a_message_is_quoted_up_to_the_limit() -> None:
    one = TranscriptEntry("tool", "x" * 4_000, (), 0, is_result=True)
    message = TranscriptEntry("tool", "x" * 4_000, (), 0, is_result=True, more=(one,))
    history = make_history(make_chain(1))
    long = ReplacedHistory(history.conversation, make_cut(0, 1), [message], [Size(2_000, 4_000)])
    rooms = [next(iter(find_whole_attempts(long, room)), None) for room in (2_100, 1_200, 400)]
    assert [found and found.quoting.tool_chars for found in rooms] == [None, 2_000, 500]
