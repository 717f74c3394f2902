"""The spans, against the definitions that they must meet: each of those looks at every message again."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.conversation import (
    Conversation,
    begin_conversation,
    count_replies,
    find_open_group,
    find_tool_names,
    is_boundary,
    with_messages,
)
from gateway.core.history.message import Call, Message, Role
from gateway.core.history.shared_list import SharedList
from gateway.core.history.spans import Span, Spans, find_spans
from tests.examples import examples
from tests.hostile.steps import count_steps

_EMPTY = begin_conversation("t", "chat")
_MAX_BETWEEN = 200


def make_message(role: Role, calls: Sequence[str] = (), results: Sequence[str] = ()) -> Message:
    name = f"{role}:{calls}:{results}".encode()
    made = tuple(Call(identity, f"tool-{identity}") for identity in calls)
    return Message(role=role, key=name, fingerprint=name, size_bytes=9, calls=made, results=tuple(results))


def messages(most: int = 16) -> st.SearchStrategy[list[Message]]:
    """Conversations of a few ids that repeat, in every order: honest ones are among them."""
    ids = st.sampled_from(["", "a", "b", "c", "ab", "ba", "aa", "bc"])
    plain = st.builds(make_message, st.sampled_from(["user", "assistant", "other"]))
    calls = st.builds(make_message, st.just("assistant"), ids)
    results = st.builds(make_message, st.just("tool"), st.just(()), ids)
    both = st.builds(make_message, st.sampled_from(["user", "assistant"]), ids, ids)
    return st.lists(st.one_of(plain, calls, results, both), max_size=most)


# The definitions.


def find_call(talk: Sequence[Message], position: int, answered: str) -> int | None:
    for at in range(position - 1, max(-1, position - 1 - _MAX_BETWEEN), -1):
        if any(call.id == answered for call in talk[at].calls):
            return at
        if answered in talk[at].results:
            return None
    return None


def list_late(talk: Sequence[Message]) -> list[tuple[int, int]]:
    found = []
    for position, message in enumerate(talk):
        for answered in message.results:
            at = find_call(talk, position, answered)
            if at is not None and count_replies(talk[at:position]) > 1:
                found.append((at, position))
    return found


def is_awaiting(talk: Sequence[Message], position: int) -> bool:
    end = position
    while end < len(talk) and not talk[end].results and talk[end].role != "assistant":
        end += 1
    if end == len(talk) or not talk[end].results:
        return False
    start = position
    while start > 0 and talk[start - 1].role != "assistant":
        start -= 1
    return not any(answered in talk[end].results for m in talk[start:position] for answered in m.results)


def is_naive_boundary(talk: Sequence[Message], position: int) -> bool:
    if position >= len(talk) or position <= 0:
        return True
    before, message = talk[position - 1], talk[position]
    if message.results or before.calls or message.role == before.role == "assistant":
        return False
    if any(call < position <= result for call, result in list_late(talk)):
        return False
    return message.role == "assistant" or not is_awaiting(talk, position)


def list_naive_names(talk: Sequence[Message]) -> list[tuple[str, ...]]:
    names = []
    tools: dict[str, str] = {}
    for position, message in enumerate(talk):
        if is_naive_boundary(talk, position):
            tools = {}
        tools.update({call.id: call.tool for call in message.calls})
        names.append(tuple(tools[result] for result in message.results if result in tools))
    return names


def assert_as_defined(conversation: Conversation) -> None:
    talk = list(conversation.messages)
    boundaries = [is_naive_boundary(talk, position) for position in range(len(talk) + 1)]
    assert [is_boundary(conversation, position) for position in range(len(talk) + 1)] == boundaries
    before_end = [position for position in range(len(talk)) if boundaries[position]]
    assert find_open_group(conversation) == max(before_end, default=0)
    assert find_tool_names(conversation) == list_naive_names(talk)


@examples(100, exhaustive=4_000)
@given(messages(), messages(), st.data())
def test_boundaries_names_and_open_group_are_as_defined_also_in_branches(
    first: list[Message], added: list[Message], data: st.DataObject
) -> None:
    before = with_messages(_EMPTY, 0, first)
    assert_as_defined(before)
    keep = data.draw(st.integers(0, len(before.messages)))
    assert_as_defined(with_messages(before, keep, added))
    # The first one has not changed although it shares its lists.
    assert_as_defined(before)


@examples(50, exhaustive=2_000)
@given(messages())
def test_growing_message_by_message_finds_the_spans_of_the_whole(talk: list[Message]) -> None:
    grown = Spans()
    for end in range(1, len(talk) + 1):
        grown = grown.grow(talk[:end], end - 1)
    assert grown == Spans(find_spans(talk))


@pytest.mark.parametrize(("between", "is_late"), [(_MAX_BETWEEN - 1, True), (_MAX_BETWEEN, False)])
def test_a_call_is_searched_for_in_the_nearest_two_hundred_messages(between: int, is_late: bool) -> None:
    asked = [make_message("user"), make_message("assistant", "x")]
    talk = [*asked, *[make_message("user"), make_message("assistant")] * between]
    talk = [*talk[: 2 + between], make_message("tool", (), "x")]
    assert (Span(1, len(talk) - 1) in find_spans(talk)) == is_late
    assert_as_defined(with_messages(_EMPTY, 0, talk))


def test_spans_that_share_messages_are_merged_once() -> None:
    spans = Spans([Span(1, 4), Span(3, 6), Span(8, 9), Span(0, 12), Span(14, 16)])
    covered = [position for position in range(20) if spans.cover(position)]
    assert covered == [*range(1, 13), 15, 16]


def _reverse_results(size: int) -> list[Message]:
    """Many calls, another reply, and their results in reverse order in one message."""
    ids = [f"c{number}" for number in range(size)]
    return [make_message("assistant", ids), *make_plain("ua"), make_message("user", (), ids[::-1])]


def make_plain(letters: str) -> list[Message]:
    return [make_message("user" if letter == "u" else "assistant") for letter in letters]


def _late_results(size: int) -> list[Message]:
    """Each result comes a few replies late, beside all the others."""
    talk = [make_message("user")]
    for number in range(size):
        results = [f"c{number - 40}"] if number >= 40 else []
        talk += [make_message("assistant", [f"c{number}"]), make_message("user", (), results)]
    return talk


HOSTILE: dict[str, Callable[[int], list[Message]]] = {
    "users": lambda size: make_plain("u" * size),
    "users between a call and its result": lambda size: [
        make_message("assistant", "x"),
        *make_plain("u" * size),
        make_message("tool", (), "x"),
    ],
    "results without calls": lambda size: [make_message("tool", (), "x")] * size,
    "results and users in turn": lambda size: [make_message("tool", (), "x"), *make_plain("u")] * size,
    "reversed results": _reverse_results,
    "late results": _late_results,
    "unanswered calls": lambda size: [make_message("assistant", "xy"), *make_plain("u")] * size,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_all_boundaries_take_time_in_proportion_to_the_messages(kind: str) -> None:
    def count(size: int) -> int:
        talk = HOSTILE[kind](size)

        def look() -> None:
            conversation = with_messages(_EMPTY, 0, talk)
            find_tool_names(conversation)
            for _ in range(20):
                find_open_group(conversation)

        return count_steps(look)

    assert count(1_200) < 2.3 * count(600)


def test_growing_a_long_conversation_takes_time_in_proportion_to_what_is_new() -> None:
    def count(size: int) -> int:
        talk = [make_message("user"), make_message("assistant", "x"), make_message("tool", (), "x")] * size
        before = with_messages(_EMPTY, 0, talk)
        grown = [make_message("assistant", "y"), make_message("tool", (), "y")]
        messages = SharedList([*before.messages, *grown])
        return count_steps(lambda: before.spans.grow(messages, len(before.messages)))

    assert count(1_000) == count(10)
