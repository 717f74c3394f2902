import json
from typing import Any

import pytest

from gateway.wire.formats.messages.text import split_results
from tests.shared_data import SHARED, requires_shared

_TEXT = {"type": "text", "text": "Go on."}
_WEB = {"type": "web_search_tool_result", "tool_use_id": "c", "content": [{"url": "x"}]}


def result(identity: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, **fields}


def test_each_result_is_taken_out_and_everything_else_is_kept() -> None:
    parts = [{"type": "text", "text": "b"}]
    blocks = [result("a", content="a", is_error=True), _WEB, result("b", content=parts), _TEXT]
    opened = split_results(json.dumps({"role": "user", "content": blocks, "n": 1}).encode())
    assert opened.contents == ("a", parts)
    kept = [result("a", is_error=True), _WEB, result("b"), _TEXT]
    assert json.loads(opened.frame) == {"role": "user", "content": kept, "n": 1}


def test_a_result_without_a_content_has_none() -> None:
    raw = json.dumps({"role": "user", "content": [result("a")]}).encode()
    opened = split_results(raw)
    assert opened.contents == (None,) and json.loads(opened.frame) == json.loads(raw)


@pytest.mark.parametrize("content", ["text", None, [_TEXT], []])
def test_where_there_is_no_result_nothing_is_taken_out(content: Any) -> None:
    raw = json.dumps({"role": "user", "content": content}).encode()
    opened = split_results(raw)
    assert opened.contents == () and json.loads(opened.frame) == json.loads(raw)


def put_back(message: dict[str, Any], contents: list[object]) -> dict[str, Any]:
    """What was taken out of a message, in its place again."""
    if not isinstance(message["content"], list):
        return message
    left = iter(contents)
    blocks = [
        {**block, "content": next(left)} if block["type"] == "tool_result" else block
        for block in message["content"]
    ]
    return {**message, "content": blocks}


@requires_shared
def test_of_recorded_requests_nothing_but_results_is_taken_out() -> None:
    paths = sorted((SHARED / "data/captures/claude-code").glob("*_messages.json"))
    bodies = [json.loads(path.read_text("utf-8"))["body"] for path in paths]
    messages = [message for body in bodies for message in body["messages"]]
    opened = [split_results(json.dumps(message).encode()) for message in messages]
    assert any(one.contents for one in opened)
    assert [put_back(json.loads(one.frame), list(one.contents)) for one in opened] == messages
