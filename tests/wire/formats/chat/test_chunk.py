import json
from typing import Any

import pytest

from gateway.core.errors import Unreadable
from gateway.wire.formats.chat.chunk import Chunk, parse_chunk, split_delta, split_pieces, with_changes
from gateway.wire.response.raw_events import RawEvent
from gateway.wire.sse import SseEvent


def parse(document: Any, name: str = "message") -> Chunk | None:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_chunk(RawEvent(b"data: " + data + b"\n\n", SseEvent(name, data)))


def expect(document: Any) -> Chunk:
    chunk = parse(document)
    assert chunk is not None
    return chunk


@pytest.mark.parametrize(
    "document",
    [
        *(b"", b"7", b"[]", b"{", {}, {"choices": 1}, {"choices": [1]}, {"choices": [{}, {}]}),
        *({"choices": [{"index": 1, "delta": {}}]}, {"choices": [{"message": {}}]}),
    ],
)
def test_what_has_no_first_choice_alone_is_not_understood(document: Any) -> None:
    assert parse(document) is None


def test_comments_are_not_understood() -> None:
    assert parse_chunk(RawEvent(b": alive\n\n", None)) is None


def test_the_parts_of_a_chunk() -> None:
    chunk = expect({"choices": [{"index": 0, "delta": {"content": "a", "tool_calls": [7]}}]})
    assert (chunk.delta["content"], chunk.pieces, chunk.has_content) == ("a", [7], True)
    assert (chunk.finish_reason, chunk.is_done, chunk.has_failed) == (None, False, False)
    end = expect({"choices": [{"delta": None, "finish_reason": "stop"}]})
    assert (end.delta, end.pieces, end.has_content, end.finish_reason) == ({}, [], False, "stop")
    assert expect({"choices": [], "usage": {}}).choice == {}
    assert expect(b" [DONE]").is_done
    assert expect({"choices": [{"delta": {"role": "assistant", "reasoning": "x"}}]}).has_content


def test_errors_are_known_in_every_shape() -> None:
    assert expect({"error": {"message": "no"}}).has_failed
    assert expect({"choices": [{"delta": {}, "error": {"message": "no"}}]}).has_failed
    failed = parse(b"not JSON", "error")
    assert failed is not None
    assert failed.has_failed


def test_only_what_is_changed_loses_its_bytes() -> None:
    data = (
        b'{"id": "a","n":1.10,\n"choices": [{"index":0, "delta":{"role":"r","x":{"y": 1e2},"content":"a"}}]}'
    )
    raw = b"id: 7\r\ndata: " + data.replace(b"\n", b"\r\ndata: ") + b"\r\n\r\n"
    chunk = parse_chunk(RawEvent(raw, SseEvent("message", data)))
    assert chunk is not None
    changed = with_changes(chunk, {"id": b'"b"'}, {"index": b"1"}, {"role": None, "content": b'"c"'})
    assert changed == (
        b'id: 7\r\ndata: {"id":"b","n":1.10,"choices":[{"index":1,"delta":'
        b'{"x":{"y": 1e2},"content":"c"}}]}\r\n\r\n'
    )


def test_the_bytes_of_the_pieces_of_a_chunk() -> None:
    chunk = expect(b'{"choices":[{"delta":{"content":"\\u0061","tool_calls":[{"index": 0},{"index":1.0}]}}]}')
    assert split_pieces(chunk) == [b'{"index": 0}', b'{"index":1.0}']
    assert split_delta(chunk)["content"] == b'"\\u0061"'


def test_repeated_keys_cannot_be_changed() -> None:
    chunk = expect(b'{"id":1,"id":2,"choices":[{"delta":{}}]}')
    with pytest.raises(Unreadable):
        with_changes(chunk, {"id": b"3"}, {}, {})
