import pytest
from hypothesis import given

from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.wire.formats.messages.request import parse_message
from gateway.wire.formats.messages.text import parse_entry
from tests.builders.chat import render_message
from tests.builders.messages import IMAGE, JSON, MARK, conversations, result, text_block, thought, use


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
def test_what_a_message_says(message: JSON, expected: TranscriptEntry) -> None:
    assert parse_entry(render_message(message)) == expected


@given(conversations(min_turns=1))
def test_there_is_an_entry_for_each_result_and_as_many_calls_as_the_facts_have(messages: list[JSON]) -> None:
    for message in messages:
        raw = render_message(message)
        facts, entries = parse_message(raw, b"k"), list_entries([parse_entry(raw)])
        assert sum(entry.is_result for entry in entries) == len(facts.results)
        assert [name for entry in entries for name, _ in entry.calls] == [call.tool for call in facts.calls]
        assert all(entry.role == message["role"] for entry in entries if not entry.is_result)
