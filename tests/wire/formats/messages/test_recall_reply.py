import json

import pytest

from gateway.wire.formats.messages.recall_reply import BLOCK_ERRORS, ReplyBlocks, is_said, parse_block
from tests.wire.formats.messages.turns import call, recall, say, think


def _add(reply: ReplyBlocks, *blocks: object, stop: str | None = "tool_use") -> object:
    return reply.add([json.dumps(block).encode() for block in blocks], stop)


@pytest.mark.parametrize("raw", [b"1", b"{}", b'{"type":1}', b"{", b"\xff"])
def test_what_is_no_block_is_refused(raw: bytes) -> None:
    with pytest.raises(BLOCK_ERRORS):
        parse_block(raw)


def test_thinking_and_empty_texts_are_not_said() -> None:
    assert is_said(say("x")) and is_said(call("look", "a"))
    assert not is_said(think("x")) and not is_said(say("\n")) and not is_said({"type": "text"})


def test_a_call_of_another_kind_of_tool_is_no_recall() -> None:
    hosted = {"type": "server_tool_use", "name": "recall_history", "id": "a", "input": {}}
    assert _add(ReplyBlocks(), hosted) is None


def test_a_call_without_an_id_cannot_be_answered() -> None:
    assert _add(ReplyBlocks(), {"type": "tool_use", "name": "recall_history"}) is None


def test_shown_counts_the_blocks_of_the_whole_turn() -> None:
    reply = ReplyBlocks()
    assert _add(reply, think("a"), say("b"), recall("r1")) is not None
    request = reply.add([json.dumps(block).encode() for block in (think("c"), recall("r2"))], "tool_use")
    assert request is not None and (request.shown, request.said) == (3, 1)
    assert reply.mark.calls == ()


def test_blocks_that_are_not_understood_add_nothing() -> None:
    reply = ReplyBlocks()
    with pytest.raises(BLOCK_ERRORS):
        reply.add([b'{"type":"text","text":"x"}', b"1"], None)
    assert reply.raws == []
