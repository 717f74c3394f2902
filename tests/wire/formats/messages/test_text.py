import json
from typing import Any

import pytest
from hypothesis import given

from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.wire.formats.messages.request import parse_message
from gateway.wire.formats.messages.text import parse_entry, split_results
from tests.builders.chat import render_message
from tests.builders.messages import IMAGE, JSON, MARK, conversations, result, text_block, thought, use
from tests.shared_data import SHARED, requires_shared


def user(*blocks: object) -> JSON:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: object) -> JSON:
    return {"role": "assistant", "content": list(blocks)}


_DONE = TranscriptEntry("tool", "done", (), 0, is_result=True)
_BLOB = "QUJD" * 256


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "a"}, TranscriptEntry("user", "a", (), 0)),
        (
            user(text_block("a", **MARK), IMAGE, text_block("b")),
            TranscriptEntry("user", "a\nb", (), 1, media_tokens=1_000),
        ),
        (user(), TranscriptEntry("user", "", (), 0)),
        (
            assistant({"type": "compaction", "content": "We looked."}),
            TranscriptEntry("assistant", "We looked.", (), 0),
        ),
        ({"role": "user"}, TranscriptEntry("user", "", (), 0)),
        (user(result()), _DONE),
        (user(result(content=[text_block("done")])), _DONE),
        (user({"type": "tool_result"}), TranscriptEntry("tool", "", (), 0, is_result=True)),
        (
            user(result("a"), result("b", [IMAGE]), text_block("Go on.")),
            TranscriptEntry(
                *("tool", "done", (), 0),
                is_result=True,
                more=(
                    TranscriptEntry("tool", "", (), 1, is_result=True, media_tokens=1_000),
                    TranscriptEntry("user", "Go on.", (), 0),
                ),
            ),
        ),
        (
            assistant(thought("hm"), text_block("a"), use(n=1), text_block("b")),
            TranscriptEntry("assistant", "a\nb", (("look", '{"n":1}'),), 0, "hm"),
        ),
        (
            assistant({"type": "thinking", "thinking": "", "signature": "QUJD" * 10}),
            TranscriptEntry("assistant", "", (), 0, media_tokens=8),
        ),
        (
            assistant({"type": "redacted_thinking", "data": "QUJD" * 10}),
            TranscriptEntry("assistant", "", (), 0, media_tokens=8),
        ),
        (
            assistant({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}),
            TranscriptEntry("assistant", "", (("web_search", '{"query":"q"}'),), 0),
        ),
        (
            assistant(
                {"type": "web_search_tool_result", "content": [{"url": "u", "encrypted_content": _BLOB}]}
            ),
            TranscriptEntry("assistant", "", (), 1, "web_search_tool_result\nu", media_tokens=204),
        ),
        (
            user({"type": "document", "source": {"type": "base64", "data": _BLOB}}),
            TranscriptEntry("user", "", (), 1, media_tokens=6_000),
        ),
        (
            user({"type": "document", "source": {"type": "text", "data": "word"}}),
            TranscriptEntry("user", "", (), 1, "document\ntext\nword"),
        ),
    ],
)
def test_the_entries_of_a_message_hold_its_texts(message: JSON, expected: TranscriptEntry) -> None:
    assert parse_entry(render_message(message)) == expected


@given(conversations(min_turns=1))
def test_there_is_an_entry_for_each_result_and_each_call_is_listed(
    messages: list[JSON],
) -> None:
    for message in messages:
        raw = render_message(message)
        facts, entries = parse_message(raw, b"k"), list_entries([parse_entry(raw)])
        assert sum(entry.is_result for entry in entries) == len(facts.results)
        assert [name for entry in entries for name, _ in entry.calls] == [call.tool for call in facts.calls]
        assert all(entry.role == message["role"] for entry in entries if not entry.is_result)


_GO_ON = {"type": "text", "text": "Go on."}
_WEB = {"type": "web_search_tool_result", "tool_use_id": "c", "content": [{"url": "x"}]}


def result_block(identity: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, **fields}


def test_each_result_is_split_off_and_everything_else_is_kept() -> None:
    parts = [{"type": "text", "text": "b"}]
    blocks = [result_block("a", content="a", is_error=True), _WEB, result_block("b", content=parts), _GO_ON]
    split = split_results(json.dumps({"role": "user", "content": blocks, "n": 1}).encode())
    assert split.contents == ("a", parts)
    kept = [result_block("a", is_error=True), _WEB, result_block("b"), _GO_ON]
    assert json.loads(split.frame) == {"role": "user", "content": kept, "n": 1}


def test_a_result_without_a_content_has_none() -> None:
    raw = json.dumps({"role": "user", "content": [result_block("a")]}).encode()
    split = split_results(raw)
    assert split.contents == (None,) and json.loads(split.frame) == json.loads(raw)


@pytest.mark.parametrize("content", ["text", None, [_GO_ON], []])
def test_nothing_is_split_off_without_a_result(content: Any) -> None:
    raw = json.dumps({"role": "user", "content": content}).encode()
    split = split_results(raw)
    assert split.contents == () and json.loads(split.frame) == json.loads(raw)


def put_back(message: dict[str, Any], contents: list[object]) -> dict[str, Any]:
    """The message with its contents put back."""
    if not isinstance(message["content"], list):
        return message
    left = iter(contents)
    blocks = [
        {**block, "content": next(left)} if block["type"] == "tool_result" else block
        for block in message["content"]
    ]
    return {**message, "content": blocks}


@requires_shared
def test_only_results_are_split_off_from_recorded_requests() -> None:
    paths = sorted((SHARED / "data/captures/claude-code").glob("*_messages.json"))
    bodies = [json.loads(path.read_text("utf-8"))["body"] for path in paths]
    messages = [message for body in bodies for message in body["messages"]]
    split = [split_results(json.dumps(message).encode()) for message in messages]
    assert any(one.contents for one in split)
    assert [put_back(json.loads(one.frame), list(one.contents)) for one in split] == messages
