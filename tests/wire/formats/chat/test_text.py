import json
from typing import Any

import pytest
from hypothesis import given

from gateway.core.history.transcript import TranscriptEntry
from gateway.wire.formats.chat.request import parse_message
from gateway.wire.formats.chat.text import parse_entry, split_results
from tests.builders.chat import JSON, conversations, render_message


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "a"}, TranscriptEntry("user", "a", (), 0)),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "image_url"}]},
            TranscriptEntry("user", "a\nb", (), 1, media_tokens=1_000),
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 9_000}},
                    {"type": "input_audio", "input_audio": {"data": "QUJD" * 9_000, "format": "wav"}},
                    {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "QUJD" * 9_000}},
                ],
            },
            TranscriptEntry("user", "", (), 3, media_tokens=1_000 + 1_200 + 6_000),
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm, a b", "n": [{"m": "c"}]}],
            },
            TranscriptEntry("assistant", "", (), 1, "thinking\nhm, a b\nc"),
        ),
        (
            {"role": "user", "content": [{"type": "new", "a": "data:x/y;base64,QQ==", "b": "QUJD" * 256}]},
            TranscriptEntry("user", "", (), 1, "new"),
        ),
        (
            {"role": "user", "content": [{"type": ["odd"], "a": "漢" * 2_000}]},
            TranscriptEntry("user", "", (), 1, "odd\n" + "漢" * 2_000),
        ),
        ({"role": "assistant", "content": None}, TranscriptEntry("assistant", "", (), 0)),
        ({"role": "assistant"}, TranscriptEntry("assistant", "", (), 0)),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "hm", "refusal": "no"},
            TranscriptEntry("assistant", "a", (), 0, "hm\nno"),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
            TranscriptEntry("assistant", "", (("f", "{}"),), 0),
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "x"}}]},
            TranscriptEntry("assistant", "", (("f", "x"),), 0),
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": None, "function": {"name": "f"}}]},
            TranscriptEntry("assistant", "", (("f", ""),), 0),
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "new"}, 7]},
            TranscriptEntry("assistant", "", (("", ""),), 0),
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            TranscriptEntry("assistant", "", (("f", "{}"),), 0),
        ),
        (
            {"role": "tool", "tool_call_id": "1", "content": "a"},
            TranscriptEntry("tool", "a", (), 0, is_result=True),
        ),
        (
            {"role": "function", "name": "f", "content": "a"},
            TranscriptEntry("function", "a", (), 0, is_result=True),
        ),
        ({"role": "wizard", "content": "a"}, TranscriptEntry("wizard", "a", (), 0)),
    ],
)
def test_the_entry_of_a_message_holds_its_texts(message: JSON, expected: TranscriptEntry) -> None:
    assert parse_entry(render_message(message)) == expected


@given(conversations())
def test_every_message_with_facts_has_an_entry(messages: list[JSON]) -> None:
    for message in messages:
        raw = render_message(message)
        facts, entry = parse_message(raw, b"t"), parse_entry(raw)
        assert entry.is_result == bool(facts.results)
        assert len(entry.calls) == len(facts.calls)
        assert facts.has_media == (entry.media > 0)


_PARTS = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]


@pytest.mark.parametrize("content", ["a", "", None, 7, _PARTS])
def test_the_content_is_split_off_and_the_rest_is_kept(content: Any) -> None:
    message = {"role": "tool", "content": content, "tool_call_id": "a", "x-unknown": 1}
    split = split_results(json.dumps(message).encode())
    assert split.contents == (content,)
    assert json.loads(split.frame) == {**message, "content": ""}


def test_missing_content_is_split_like_null() -> None:
    split = split_results(b'{"role":"tool"}')
    assert split == (b'{"role":"tool","content":""}', (None,))


def test_all_other_values_keep_their_bytes() -> None:
    split = split_results(b'{ "n": 1.10, "content": "a", "big": 123456789012345678901234 }')
    assert split.frame == b'{"n":1.10,"content":"","big":123456789012345678901234}'
