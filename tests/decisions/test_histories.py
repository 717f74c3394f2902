"""Conversations as chains: leading block, opening, open group, boundaries, and calls with their results."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.conversation import (
    Conversation,
    Span,
    Trim,
    begin_conversation,
    count_replies,
    find_open_group,
    find_replaceable_start,
    find_reply_end,
    find_spans,
    find_tool_names,
    is_boundary,
    with_messages,
)
from gateway.core.history.message import Call, Message, Role, fingerprint_fields, hash_beginning
from tests.decisions.builders import continue_trimmed, say
from tests.examples import examples

_EMPTY = begin_conversation("t", "chat")
_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool", "other")


def make_message(role: Role, text: str = "", **fields: Any) -> Message:
    name = f"{role}:{text}".encode()
    results = ("a",) if role == "tool" else ()
    return Message(role=role, key=name, fingerprint=name, size_bytes=9, **({"results": results} | fields))


def make_messages(letters: str) -> list[Message]:
    """Messages by the first letters of their roles."""
    return [make_message(next(role for role in _ROLES if role[0] == letter)) for letter in letters]


def messages() -> st.SearchStrategy[list[Message]]:
    return st.lists(st.builds(make_message, st.sampled_from(_ROLES), st.sampled_from("xyz")), max_size=9)


@given(messages(), messages(), st.data())
def test_continuing_from_any_position_equals_parsing_everything(
    first: list[Message], added: list[Message], data: st.DataObject
) -> None:
    before = with_messages(_EMPTY, 0, first)
    keep = data.draw(st.integers(0, len(before.messages)))
    whole = with_messages(_EMPTY, 0, [*before.leading, *before.messages[:keep], *added])
    assert with_messages(before, keep, added) == whole


@given(messages(), messages())
def test_a_longer_chain_begins_with_the_shorter_one(first: list[Message], added: list[Message]) -> None:
    before = with_messages(_EMPTY, 0, first)
    after = with_messages(before, len(before.messages), added)
    assert after.chain[: len(before.chain)] == before.chain
    assert len(set(after.chain)) == len(after.chain)


@pytest.mark.parametrize(
    ("tenant", "wire_format"),
    [("u", "chat"), ("t", "messages"), ("t:", "chat"), ("", "t:chat"), ("tc", "hat")],
)
def test_every_tenant_and_format_has_its_own_chain(tenant: str, wire_format: str) -> None:
    assert begin_conversation(tenant, wire_format).key != _EMPTY.key


def test_only_the_leading_block_is_outside_the_chain() -> None:
    user, system = make_message("user"), make_message("system")
    plain = with_messages(_EMPTY, 0, [user])
    assert with_messages(_EMPTY, 0, [system, user]).chain == plain.chain
    assert with_messages(_EMPTY, 0, [user, system]).chain != plain.chain


def test_a_reply_of_several_messages_is_not_separated() -> None:
    thought, said = make_messages("aa")
    asked = [make_message("assistant", tool, calls=(Call(tool, tool),)) for tool in ("look", "read")]
    done = [make_message("tool", tool, results=(tool,)) for tool in ("look", "read")]
    talk = with_messages(
        _EMPTY, 0, [make_message("user"), thought, said, *asked, *done, make_message("user")]
    )
    assert [is_boundary(talk, position) for position in range(9)] == [True, True, *[False] * 5, True, True]
    assert find_reply_end(talk, 1) == 5
    assert find_reply_end(talk, 0) == 0
    assert count_replies(talk.messages) == 1
    assert count_replies([*talk.messages, thought]) == 2


def test_messages_before_an_opaque_one_are_opening() -> None:
    opaque = make_message("other", "opaque")._replace(is_opaque=True)
    user, answer = make_message("user"), make_message("assistant")
    talk = with_messages(_EMPTY, 0, [user, answer, user, opaque, user, answer, user])
    assert talk.opening_end == 5
    shorter = with_messages(talk, 3, [answer])
    assert shorter.opening_end == 1


def make_sealed(role: Role) -> Message:
    return make_message(role, "opaque", is_opaque=True)


def test_a_reply_that_contains_an_opaque_message_is_opening() -> None:
    opaque = make_sealed("assistant")
    talk = [*make_messages("ua"), opaque, *make_messages("atuat")]
    conversation = with_messages(_EMPTY, 0, talk)
    # u a [opaque] a t u | a t
    assert conversation.opening_end == 6
    assert find_replaceable_start(conversation, keeps_opening=True) == 6
    assert find_replaceable_start(conversation, keeps_opening=False) == 5


def test_without_an_opening_everything_but_opaque_messages_may_be_replaced() -> None:
    assert find_replaceable_start(with_messages(_EMPTY, 0, make_messages("uuat")), keeps_opening=False) == 0
    opaque = with_messages(_EMPTY, 0, [*make_messages("u"), make_sealed("other"), *make_messages("uat")])
    assert find_replaceable_start(opaque, keeps_opening=False) == 2
    assert find_replaceable_start(opaque, keeps_opening=True) == 3


@given(messages(), messages(), st.sampled_from(_ROLES[1:]), st.data())
def test_an_opaque_message_is_never_replaced(
    before: list[Message], behind: list[Message], role: Role, data: st.DataObject
) -> None:
    conversation = with_messages(_EMPTY, 0, [*before, make_sealed(role), *behind])
    keep = data.draw(st.integers(0, len(conversation.messages)))
    again = with_messages(conversation, keep, conversation.messages[keep:])
    assert again == conversation
    for keeps_opening in (True, False):
        start = find_replaceable_start(conversation, keeps_opening=keeps_opening)
        assert not any(message.is_opaque for message in conversation.messages[start:])
        assert is_boundary(conversation, start) or not keeps_opening or start == conversation.opening_end


def test_positions_in_a_trimmed_history_are_those_of_the_whole() -> None:
    whole = say(6)
    found = continue_trimmed(say(5), [whole[0], *whole[13:]])
    assert found.trim == Trim((0, *range(13, 25)), 13)
    assert [found.index(position) for position in (0, 1, 5, 13, 14)] == [0, 1, 1, 1, 2]
    assert [position for position in range(25) if found.is_gone(position)] == list(range(1, 13))
    assert len(found.received) == len(whole) - 12


_MAX_BETWEEN = 200


def make_message_of_spans(role: Role, calls: Sequence[str] = (), results: Sequence[str] = ()) -> Message:
    name = f"{role}:{calls}:{results}".encode()
    made = tuple(Call(identity, f"tool-{identity}") for identity in calls)
    return Message(role=role, key=name, fingerprint=name, size_bytes=9, calls=made, results=tuple(results))


def messages_of_spans(most: int = 16) -> st.SearchStrategy[list[Message]]:
    """Conversations of a few ids that repeat, in every order: honest ones are among them."""
    ids = st.sampled_from(["", "a", "b", "c", "ab", "ba", "aa", "bc"])
    plain = st.builds(make_message_of_spans, st.sampled_from(["user", "assistant", "other"]))
    calls = st.builds(make_message_of_spans, st.just("assistant"), ids)
    results = st.builds(make_message_of_spans, st.just("tool"), st.just(()), ids)
    both = st.builds(make_message_of_spans, st.sampled_from(["user", "assistant"]), ids, ids)
    return st.lists(st.one_of(plain, calls, results, both), max_size=most)


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
@given(messages_of_spans(), messages_of_spans(), st.data())
def test_boundaries_names_and_open_group_are_as_defined_also_in_branches(
    first: list[Message], added: list[Message], data: st.DataObject
) -> None:
    before = with_messages(_EMPTY, 0, first)
    assert_as_defined(before)
    keep = data.draw(st.integers(0, len(before.messages)))
    assert_as_defined(with_messages(before, keep, added))
    # The first one has not changed although the other one began with it.
    assert_as_defined(before)


@pytest.mark.parametrize(("between", "is_late"), [(_MAX_BETWEEN - 1, True), (_MAX_BETWEEN, False)])
def test_a_call_is_searched_for_in_the_nearest_two_hundred_messages(between: int, is_late: bool) -> None:
    asked = [make_message_of_spans("user"), make_message_of_spans("assistant", "x")]
    talk = [*asked, *[make_message_of_spans("user"), make_message_of_spans("assistant")] * between]
    talk = [*talk[: 2 + between], make_message_of_spans("tool", (), "x")]
    assert (Span(1, len(talk) - 1) in find_spans(talk)) == is_late
    assert_as_defined(with_messages(_EMPTY, 0, talk))


_FIELDS = st.lists(
    st.tuples(st.sampled_from([b"role", b"text", b"call"]), st.text("a:1", max_size=4).map(str.encode))
)


@given(_FIELDS, _FIELDS)
def test_different_lists_of_fields_have_different_fingerprints(
    one: list[tuple[bytes, bytes]], other: list[tuple[bytes, bytes]]
) -> None:
    assert (fingerprint_fields(one) == fingerprint_fields(other)) == (one == other)


def test_a_value_cannot_imitate_another_field() -> None:
    assert fingerprint_fields([(b"text", b"a"), (b"text", b"b")]) != fingerprint_fields(
        [(b"text", b"atext:1:b")]
    )


def test_a_text_that_was_cut_begins_alike() -> None:
    text = "A long text. " * 10
    assert hash_beginning(text[:80] + "[...]") == hash_beginning(text)
    assert hash_beginning(text[:20] + "[...]") != hash_beginning(text)
    assert hash_beginning("  ") == hash_beginning("") == b""
