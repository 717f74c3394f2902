import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.conversation import (
    Trim,
    begin_conversation,
    count_replies,
    find_open_group,
    find_replaceable_start,
    find_reply_end,
    find_tool_names,
    is_boundary,
    with_messages,
)
from gateway.core.history.message import Call, Message, Role
from tests.builders.chat import read, render
from tests.builders.trimmed import continue_trimmed, say, shorten

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


@pytest.mark.parametrize(
    ("letters", "leading", "opening_end", "open_group"),
    [
        ("", 0, 0, 0),
        ("s", 1, 0, 0),
        ("u", 0, 1, 0),
        ("ssu", 2, 1, 0),
        ("suu", 1, 2, 1),
        ("susu", 1, 3, 2),
        ("a", 0, 0, 0),
        ("sat", 1, 0, 0),
        ("uatt", 0, 1, 1),
        ("uattu", 0, 1, 4),
        ("uattat", 0, 1, 4),
        ("uatts", 0, 1, 4),
        ("uoua", 0, 3, 3),
        ("t", 0, 1, 0),
    ],
)
def test_leading_block_opening_and_open_group_end_at_known_positions(
    letters: str, leading: int, opening_end: int, open_group: int
) -> None:
    conversation = with_messages(_EMPTY, 0, make_messages(letters))
    assert len(conversation.leading) == leading
    assert conversation.opening_end == opening_end
    assert find_open_group(conversation) == open_group
    assert len(conversation.chain) == len(conversation.messages) + 1


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


@given(messages(), messages())
def test_chains_are_equal_only_for_equal_messages(one: list[Message], other: list[Message]) -> None:
    a, b = with_messages(_EMPTY, 0, one), with_messages(_EMPTY, 0, other)
    assert (a.key == b.key) == (list(a.messages) == list(b.messages))


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


@given(messages())
def test_the_open_group_is_the_last_boundary(added: list[Message]) -> None:
    conversation = with_messages(_EMPTY, 0, added)
    open_group = find_open_group(conversation)
    assert open_group == 0 or is_boundary(conversation, open_group)
    inside = range(open_group + 1, len(conversation.messages))
    assert not any(is_boundary(conversation, position) for position in inside)
    assert is_boundary(conversation, len(conversation.messages))


def test_a_result_belongs_to_the_call_in_its_own_group() -> None:
    def call(tool: str) -> Message:
        return make_message("assistant", tool, calls=(Call("a", tool), Call("b", "other")))

    talk = [make_message("user"), call("look"), *make_messages("tt"), call("skill"), *make_messages("tut")]
    names = find_tool_names(with_messages(_EMPTY, 0, talk))
    assert names == [(), (), ("look",), ("look",), (), ("skill",), (), ()]


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


def test_there_is_no_boundary_before_all_calls_have_results() -> None:
    calls = make_message("assistant", calls=(Call("a", "look"), Call("b", "look")))
    one, other = (make_message("tool", answered, results=(answered,)) for answered in "ab")
    talk = [make_message("user"), calls, one, *make_messages("uu"), other, *make_messages("ua")]
    conversation = with_messages(_EMPTY, 0, talk)
    assert [at for at in range(1, 8) if is_boundary(conversation, at)] == [1, 6, 7]


def test_a_late_result_is_not_separated_from_its_call() -> None:
    """An approval may come after other messages."""
    late = [
        make_message("user", "a"),
        make_message("assistant", "b", calls=(Call("x", "t"),)),
        make_message("user", "c"),
        make_message("assistant", "d"),
        make_message("user", "e"),
        make_message("tool", "f", results=("x",)),
        make_message("assistant", "g"),
        make_message("user", "h"),
    ]
    whole = with_messages(_EMPTY, 0, late)
    assert [at for at in range(1, 8) if is_boundary(whole, at)] == [1, 6, 7]
    assert find_open_group(with_messages(_EMPTY, 0, late[:6])) == 1
    # Without the result the messages are not joined any more.
    assert is_boundary(with_messages(whole, 5, []), 4)


def test_a_reused_id_does_not_join_groups() -> None:
    turn = [
        make_message("user"),
        make_message("assistant", calls=(Call("x", "t"),)),
        make_message("tool", results=("x",)),
    ]
    orphan = [make_message("assistant"), make_message("user"), make_message("tool", results=("x",))]
    spans = with_messages(_EMPTY, 0, [*turn * 3, *orphan]).spans
    assert not any(spans.cover(position) for position in range(10))


@given(st.lists(st.sampled_from(("user", "assistant", "call", "result")), max_size=14), st.randoms())
def test_no_boundary_separates_a_call_from_its_result(kinds: list[str], chance: random.Random) -> None:
    built: list[Message] = []
    waiting: list[str] = []
    for number, kind in enumerate([*kinds, *["result"] * len(kinds)]):
        if kind == "call":
            waiting.append(f"x{number}")
            built.append(make_message("assistant", calls=(Call(waiting[-1], "t"),)))
        elif kind == "result" and waiting:
            answered = waiting.pop(chance.randrange(len(waiting)))
            built.append(make_message("tool", results=(answered,)))
        elif kind in ("user", "assistant"):
            built.append(make_message("user" if kind == "user" else "assistant", str(number)))
    whole = with_messages(_EMPTY, 0, built)
    for position in range(1, len(built)):
        calls = {call.id for message in built[:position] for call in message.calls}
        answers = {answered for message in built[position:] for answered in message.results}
        assert not (is_boundary(whole, position) and calls & answers)


def test_positions_in_a_trimmed_history_are_those_of_the_whole() -> None:
    whole = say(6)
    found = continue_trimmed(say(5), [whole[0], *whole[13:]]).conversation
    assert found.trim == Trim((0, *range(13, 25)), 13)
    assert [found.index(position) for position in (0, 1, 5, 13, 14)] == [0, 1, 1, 1, 2]
    assert [position for position in range(25) if found.is_gone(position)] == list(range(1, 13))
    assert len(found.received) == len(whole) - 12


def test_shortened_messages_are_found() -> None:
    whole = say(6)
    found = continue_trimmed(say(5), [whole[0], *shorten(whole[5:], 1)]).conversation
    assert found.find_changed() == [0, 6]  # the chain is not known where the first one stands
    assert read(render(whole)).conversation.find_changed() == []
