import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.formats.messages.message_collector import MessageCollector
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import StoredResponse

_CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0}


def block_events(index: int, begun: object, *deltas: object) -> list[dict[str, object]]:
    events: list[dict[str, object]] = [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]
    return events


def stream(*blocks: list[dict[str, object]], name: str = "msg_1") -> list[dict[str, object]]:
    message = {"id": name, "type": "message", "role": "assistant", "content": []}
    return [
        {"type": "message_start", "message": message},
        {"type": "ping"},
        *(event for block in blocks for event in block),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]


def collect(events: Sequence[object]) -> list[StoredResponse]:
    collector = MessageCollector()
    fed = [collector.feed(SseEvent("message", json.dumps(event).encode())) for event in events]
    return [response for response in fed if response is not None]


def read_blocks(events: Sequence[object]) -> Any:
    (response,) = collect(events)
    assert response.name == "msg_1" and response.names == (None,)
    (item,) = response.items
    message = json.loads(item)
    assert message["role"] == "assistant"
    return message["content"]


def test_a_stream_is_put_together_block_by_block() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    events = stream(
        block_events(
            0,
            thinking,
            {"type": "thinking_delta", "thinking": "Let "},
            {"type": "thinking_delta", "thinking": "me."},
            {"type": "signature_delta", "signature": "c2ln"},
        ),
        block_events(
            1,
            {"type": "text", "text": "", "citations": [_CITATION]},
            {"type": "text_delta", "text": "So "},
            {"type": "citations_delta", "citation": _CITATION},
            {"type": "text_delta", "text": "é\u2028"},
            {"type": "citations_delta", "citation": _CITATION},
        ),
        block_events(2, {"type": "redacted_thinking", "data": "x"}),
        block_events(
            3,
            call,
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"path": "a", "n'},
            {"type": "input_json_delta", "partial_json": '": 1.0}'},
        ),
        block_events(4, call | {"id": "toolu_2"}, {"type": "input_json_delta", "partial_json": ""}),
        block_events(
            5,
            {"type": "compaction", "content": None},
            {"type": "compaction_delta", "content": "sum", "encrypted_content": "e"},
        ),
    )
    assert read_blocks(events) == [
        {"type": "thinking", "thinking": "Let me.", "signature": "c2ln"},
        {"type": "text", "text": "So é\u2028", "citations": [_CITATION] * 3},
        {"type": "redacted_thinking", "data": "x"},
        call | {"input": {"path": "a", "n": 1.0}},
        call | {"id": "toolu_2"},
        {"type": "compaction", "content": "sum", "encrypted_content": "e"},
    ]


def test_a_whole_body_is_taken_as_it_is() -> None:
    content = [{"type": "text", "text": "said"}, {"type": "unheard_of", "x": [1.50]}]
    body = {"type": "message", "id": "msg_1", "content": content, "stop_reason": "end_turn"}
    assert read_blocks([body]) == content


def test_a_reply_without_content_adds_no_message() -> None:
    """The API would refuse it in a later request."""
    for events in (stream(), [{"type": "message", "id": "msg_1", "content": []}]):
        assert collect(events) == [StoredResponse("msg_1", (), ())]


@pytest.mark.parametrize(
    "events",
    [
        stream()[:-1],
        [*stream()[:2], {"type": "error", "error": {}}, {"type": "message_stop"}],
        stream(block_events(0, {"type": "text", "text": ""}, {"type": "unheard_of_delta", "text": "x"})),
        # Cut inside of its arguments.
        stream(
            block_events(
                0,
                {"type": "tool_use", "input": {}},
                {"type": "input_json_delta", "partial_json": '{"a'},
            )
        ),
        stream(block_events(1, {"type": "text", "text": ""})),
        stream(block_events(0, {"type": "text", "text": ""})[:-1]),
        [{"type": "message", "content": []}],
        [{"type": "unheard_of"}, *stream()],
        [{"type": "message", "id": "m", "content": [{"type": "text", "text": "x" * (4 << 20)}]}],
    ],
)
def test_a_response_that_is_not_put_together_for_certain_is_none(events: list[object]) -> None:
    assert collect(events) == []


@given(st.lists(st.text(max_size=5), min_size=1))
def test_however_a_text_is_cut_into_pieces(pieces: list[str]) -> None:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    events = stream(block_events(0, {"type": "text", "text": ""}, *deltas))
    assert read_blocks(events) == [{"type": "text", "text": "".join(pieces)}]


@given(st.lists(st.binary()))
def test_no_event_raises(datas: list[bytes]) -> None:
    collector = MessageCollector()
    for data in datas:
        collector.feed(SseEvent("message", data))
