import json

import pytest

from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.responses.recall_items import (
    ITEM_ERRORS,
    ReplyItems,
    list_output,
    make_response_edits,
    parse_item,
)
from gateway.wire.recall import RecallRequest
from tests.wire.formats.responses.turns import Item, call, recall, say, think


def _add(reply: ReplyItems, *items: Item, is_completed: bool = True) -> RecallRequest | None:
    return reply.add([json.dumps(item).encode() for item in items], is_completed)


@pytest.mark.parametrize("raw", [b"1", b"{}", b"[]", b"{", b"\xff", b""])
def test_what_is_no_item_is_refused(raw: bytes) -> None:
    with pytest.raises(ITEM_ERRORS):
        parse_item(raw)


def test_a_custom_call_of_this_name_is_no_recall() -> None:
    assert _add(ReplyItems(), recall("r") | {"type": "custom_tool_call"}) is None


def test_a_call_without_an_id_cannot_be_answered() -> None:
    assert _add(ReplyItems(), recall("")) is None


def test_a_call_stands_behind_the_reasoning_that_led_to_it() -> None:
    request = _add(ReplyItems(), think("1", recall("r")), recall("r"), say("a", "x"))
    assert request is not None and (request.shown, request.said) == (1, 0)
    assert [item["type"] for item in json.loads(f"[{request.reply}]")] == [
        "reasoning",
        "function_call",
        "message",
    ]


def test_shown_counts_the_items_of_the_whole_turn() -> None:
    reply = ReplyItems()
    assert _add(reply, say("a", "x"), recall("r1")) is not None
    request = _add(reply, think("1", recall("r2")), recall("r2"))
    assert request is not None and (request.shown, request.said) == (2, 1)
    assert reply.mark.calls == ()


def test_own_calls_of_every_kind_make_a_response_parallel() -> None:
    for kind in ("function_call", "custom_tool_call", "local_shell_call", "apply_patch_call"):
        request = _add(ReplyItems(), recall("r"), call("look", "own") | {"type": kind})
        assert request is not None and request.is_parallel and request.reply == ""


def test_items_that_are_not_understood_add_nothing() -> None:
    reply = ReplyItems()
    with pytest.raises(ITEM_ERRORS):
        reply.add([json.dumps(say("a", "x")).encode(), b"1"], True)
    assert reply.raws == []


def test_the_output_is_a_list_or_missing() -> None:
    assert list_output(b'{"output": [1, 2]}') == [b"1", b"2"]
    assert list_output(b'{"output": null}') == list_output(b"{}") == []
    with pytest.raises(ITEM_ERRORS):
        list_output(b'{"output": "x"}')


def test_a_response_has_the_id_of_the_first_and_the_items_of_all() -> None:
    response = b'{"id":"b","tools":[{"name":"look"}, {"name":"recall_history"}],"output":[{"type":"x"}]}'
    edits = make_response_edits(response, b'"a"', [b'{"type":"y"}'])
    assert apply_edits(response, edits) == (
        b'{"id":"a","tools":[{"name":"look"}],"output":[{"type":"y"},{"type":"x"}]}'
    )
    assert make_response_edits(b'{"id":"b","output":[1]}') == []
    assert all(isinstance(edit, Edit) for edit in edits)
