from gateway.core.history.recall import RecallRound
from gateway.wire.insertions import Placed, find_placed
from tests.builders.chat import JSON, read, render
from tests.builders.recalls import SPLICING, make_recall

_TALK: list[JSON] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
]
_RECEIVED = read(render(_TALK))
_RAWS = [_RECEIVED.raw(position) for position in range(1, 4)]
_RECALL = make_recall(_RECEIVED.conversation, 1)
_CALL = b'{"role":"user","content":"CALL"},'


def test_places_are_relative_to_the_messages() -> None:
    found = find_placed(SPLICING, _RECEIVED.body, _RAWS, 2, _RECALL)
    assert found == (Placed(0, 0, _CALL), Placed(2, len(_RAWS[2]) - 1, b',"_":"RESULTS"'))


def test_a_reply_without_a_message_behind_it_has_its_calls() -> None:
    assert find_placed(SPLICING, _RECEIVED.body, _RAWS[:2], 2, _RECALL) == (Placed(0, 0, _CALL),)


def test_without_a_reply_there_is_no_place() -> None:
    assert find_placed(SPLICING, _RECEIVED.body, _RAWS[2:], 0, _RECALL) is None


def test_what_the_gateway_found_stands_in_front() -> None:
    rounds = (RecallRound(call="{}", results=""), RecallRound(call="[]", results=""))
    recall = make_recall(_RECEIVED.conversation, 3, kind="found", reply=None, rounds=rounds)
    assert find_placed(SPLICING, _RECEIVED.body, _RAWS[2:], 0, recall) == (Placed(0, 0, b"{},[],"),)
