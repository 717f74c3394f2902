from dataclasses import replace

from gateway.core.history.conversation import GONE, Conversation
from gateway.core.history.recall import Recall, ReplyMark, find_eligible_recalls, make_reply_mark
from gateway.core.history.shared_list import SharedList
from tests.builders.chat import JSON, converse

_TALK: list[JSON] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
    {"role": "user", "content": "e"},
]
_CONVERSATION = converse(_TALK)


def _make(length: int, position: int, reply: ReplyMark | None = None) -> Recall:
    key = _CONVERSATION.chain[length].hex()
    return Recall(
        owner="t",
        chain=key,
        length=length,
        position=position,
        kind="tool",
        rounds=(),
        tokens=0,
        reply=reply,
        created_seconds=0.0,
    )


def test_recalls_are_eligible_on_their_chain_in_the_order_of_their_positions() -> None:
    late, early = _make(3, 3), _make(1, 1)
    assert find_eligible_recalls(_CONVERSATION, [late, early], 0) == [early, late]


def test_a_recall_behind_a_pivot_that_covers_it_is_not_eligible() -> None:
    assert find_eligible_recalls(_CONVERSATION, [_make(1, 1), _make(3, 3)], 2) == [_make(3, 3)]


def test_a_recall_of_another_history_is_not_eligible() -> None:
    edited = converse([{"role": "user", "content": "A"}, *_TALK[1:]])
    assert find_eligible_recalls(edited, [_make(1, 1)], 0) == []


def test_a_recall_waits_until_its_reply_has_come_back() -> None:
    assert find_eligible_recalls(converse(_TALK[:3]), [_make(3, 3)], 0) == []


def replace_messages(conversation: Conversation, gone: int) -> Conversation:
    messages = list(conversation.messages)
    messages[gone] = GONE
    return replace(conversation, messages=SharedList(messages))


def test_a_recall_whose_message_the_client_has_dropped_is_not_eligible() -> None:
    trimmed = replace_messages(_CONVERSATION, gone=3)
    assert find_eligible_recalls(trimmed, [_make(1, 1), _make(3, 3)], 0) == [_make(1, 1)]


def test_replies_at_one_place_have_different_keys() -> None:
    marks = [ReplyMark(calls=("x",)), ReplyMark(calls=("x", "y")), ReplyMark(text="ab"), ReplyMark()]
    keys = {_make(1, 1, mark).key for mark in marks}
    assert len(keys) == len(marks)
    assert all(bytes.fromhex(key) for key in keys)


def test_the_mark_of_a_reply_does_not_depend_on_its_white_space() -> None:
    mark = make_reply_mark(["a", "b"], ["Look \n", " here"])
    assert mark.calls == ("a", "b")
    assert mark.text == make_reply_mark([], ["Lookhere"]).text != make_reply_mark([], ["Look"]).text


def test_a_reply_without_text_has_none_in_its_mark() -> None:
    assert make_reply_mark(["a"], [" ", "\n"]) == ReplyMark(calls=("a",))
