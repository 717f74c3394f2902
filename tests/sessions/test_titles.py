"""Titles are one line of words; what could be one of several sessions' is no proof."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.session.titles import LONGEST_TITLE_CHARS
from gateway.sessions.titles import TitleListener, clean_title, find_summary_title, list_proofs
from gateway.wire.formats.chat import CHAT
from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.responses import RESPONSES
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import WireFormat


@pytest.mark.parametrize(
    ("reply", "title"),
    [
        ("Date parser", "Date parser"),
        ('"Date parser"\n', "Date parser"),
        ("<think>Hm.</think>\n\n# **Date parser**", "Date parser"),
        ('{"title": "Date parser"}', "Date parser"),
        ('```json\n{"title": "Date parser"}\n```', "Date parser"),
        ('{"isNewTopic": false, "title": null}', ""),
        ('{"title"', ""),
        ("<think>Not done", ""),
        ("", ""),
        ("Date\x1b[31m\u202eparser\nand more", "Date [31m parser"),
    ],
)
def test_a_reply_becomes_a_title(reply: str, title: str) -> None:
    assert clean_title(reply) == title


@pytest.mark.parametrize(
    ("summary", "title"),
    [
        ("# Repair of the date parser\n\nText", "Repair of the date parser"),
        ("## Goal\n\n- Fix the parser of dates\n", "Fix the parser of dates"),
        (
            "**Summary of our conversation**\n\n1. **Primary request and intent:**\n   Fix the parser.",
            "Fix the parser",
        ),
        ("## Goal\nFix it.\n\n## Constraints and preferences\nUse only the standard library.", "Fix it"),
        ("## Goal\n修复日期解析器。\n\n## Constraints and preferences\n无", "修复日期解析器。"),
        ("## Goal\nNone\n\n## Decisions\nNone\n\n## Done\nThe parser reads dates.", "The parser reads dates"),
        ("**Task:**\nDates:\n- Parser\n\n## Files", "Parser"),
        ("## Decisions\nYes.\n\n## Next step\nRun all of the tests.", "Run all of the tests"),
        ("<summary>\nWe fixed the parser of dates.\n</summary>", "We fixed the parser of dates"),
        ("<think>Let me see</think># Context\n\nDone.", ""),
        ("# Parser\n", "Parser"),
        ("# Summary\n", ""),
        ("```\ncode\n```", ""),
        ("", ""),
    ],
)
def test_a_summary_gives_a_title(summary: str, title: str) -> None:
    assert find_summary_title(summary) == title


@given(st.text())
def test_titles_are_short_and_printable_whatever_they_are_made_of(text: str) -> None:
    for title in (clean_title(text), find_summary_title(text)):
        assert len(title) <= LONGEST_TITLE_CHARS
        assert title.isprintable()


def test_a_session_is_proven_by_its_label_or_by_what_was_asked() -> None:
    assert list_proofs("s", ["Fix the parser of dates"]) == list_proofs("s", [])
    assert list_proofs(None, ["Fix the parser of dates\n"]) == list_proofs(None, ["Fix the parser of dates"])
    assert list_proofs(None, ["Hello", ""]) == ()
    assert set(list_proofs("s", [])).isdisjoint(list_proofs(None, ["s" * 12]))
    assert "dates" not in str(list_proofs("dates", [])) + str(list_proofs(None, ["many dates here"]))


_REPLIES = {
    "chat": (
        CHAT,
        [
            b'{"object":"chat.completion.chunk","choices":[{"delta":{"content":"Date "}}]}',
            b'{"object":"chat.completion.chunk","choices":[{"delta":{"content":"parser"}}]}',
            b'{"object":"chat.completion.chunk","choices":[{"delta":{},"finish_reason":"stop"}]}',
            b"[DONE]",
        ],
    ),
    "chat, whole": (
        CHAT,
        [b'{"choices":[{"message":{"role":"assistant","content":"Date parser"},"finish_reason":"stop"}]}'],
    ),
    "messages": (
        MESSAGES,
        [
            b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Date parser"}}',
            b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}',
            b'{"type":"message_stop"}',
        ],
    ),
    "responses": (
        RESPONSES,
        [
            b'{"type":"response.output_text.delta","delta":"Date parser"}',
            b'{"type":"response.completed","response":{"object":"response","status":"completed","output":'
            b'[{"type":"message","role":"assistant","content":'
            b'[{"type":"output_text","text":"Date parser"}]}]}}',
        ],
    ),
}


@pytest.mark.parametrize("name", _REPLIES)
def test_a_whole_reply_is_told_once(name: str) -> None:
    wire_format, events = _REPLIES[name]
    replies = listen(wire_format, events)
    assert replies == ["Date parser"]


def test_a_reply_that_fails_or_never_ends_is_not_told() -> None:
    delta = b'{"object":"chat.completion.chunk","choices":[{"delta":{"content":"Date parser"}}]}'
    end = b'{"object":"chat.completion.chunk","choices":[{"delta":{},"finish_reason":"stop"}]}'
    assert listen(CHAT, [delta]) == []
    assert listen(CHAT, [delta, b'{"error":{"message":"overloaded"}}', end]) == []
    assert listen(CHAT, [delta] * 1_000 + [end]) == []


def listen(wire_format: WireFormat, events: list[bytes]) -> list[str]:
    replies: list[str] = []
    listener = TitleListener(wire_format.find_reply_part, replies.append)
    for data in events:
        listener.note(SseEvent("message", data))
    return replies
