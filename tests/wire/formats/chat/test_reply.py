from typing import Any

import pytest

from gateway.wire.formats.chat.reply import find_reply_part
from gateway.wire.wire_format import ReplyPart


def delta(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields}]}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (delta(content="Hello"), ReplyPart("Hello")),
        (delta(role="assistant", content=""), ReplyPart()),
        (delta(content=None, reasoning_content="hm"), ReplyPart()),
        (
            delta(content=[{"type": "thinking", "text": "hm"}, {"type": "text", "text": "Hello"}]),
            ReplyPart("Hello"),
        ),
        (delta(tool_calls=[{"index": 0}]), ReplyPart(has_tool_calls=True)),
        (delta(function_call={"name": "f"}), ReplyPart(has_tool_calls=True)),
        (delta(content="a", tool_calls=[], function_call=None), ReplyPart("a")),
        (
            {"choices": [{"message": {"content": "Hello"}}]},
            ReplyPart("Hello", is_whole=True),
        ),
        (
            {"choices": [{"message": {"content": None, "tool_calls": [{"id": "a"}]}}]},
            ReplyPart(is_whole=True, has_tool_calls=True),
        ),
        ({"choices": []}, ReplyPart()),
        ({"choices": [{"delta": 1, "message": "odd"}, 7]}, ReplyPart()),
        ({"error": {"message": "no"}}, ReplyPart()),
    ],
)
def test_a_document_adds_the_text_of_its_first_choice(document: dict[str, Any], expected: ReplyPart) -> None:
    assert find_reply_part(document) == expected


def test_other_choices_add_tool_calls_but_no_text() -> None:
    assert find_reply_part(delta(1, content="another")) == ReplyPart()
    assert find_reply_part(delta(1, tool_calls=[{"index": 0}])) == ReplyPart(has_tool_calls=True)
