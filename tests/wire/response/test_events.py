import gzip
import json

import pytest

from gateway.wire.response.events import MAX_BODY_BYTES, ResponseEvents
from gateway.wire.sse import SseEvent
from tests.wire.recorded import cut

_BODY = json.dumps({"id": "1", "choices": []}).encode()
_STREAM = b'data: {"id":"1"}\n\nevent: end\ndata: 2\n\n'
_EVENTS = [SseEvent("message", b'{"id":"1"}'), SseEvent("end", b"2")]


def parse(*chunks: bytes, content_type: str = "", encoding: str = "") -> list[SseEvent]:
    events = ResponseEvents(content_type, encoding)
    found = []
    for chunk in chunks:
        found += events.feed(chunk)
        while events.is_behind:
            found += events.catch_up()
    return found + events.finish()


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", ""])
def test_the_bytes_decide_what_is_a_stream(content_type: str) -> None:
    assert parse(_STREAM, content_type=content_type) == _EVENTS
    assert parse(*cut(_STREAM, 1), content_type=content_type) == _EVENTS
    assert parse(_BODY, content_type=content_type) == [SseEvent("", _BODY)]


def test_a_body_of_unknown_bytes_is_what_its_content_type_says() -> None:
    assert parse(b"event\ndata: 1\n\n", content_type="text/event-stream") == [SseEvent("message", b"1")]
    assert parse(b"event\ndata: 1\n\n") == [SseEvent("", b"event\ndata: 1\n\n")]


def test_a_body_that_is_not_a_stream_is_one_event_without_a_name() -> None:
    events = ResponseEvents("application/json", "")
    assert [events.feed(chunk) for chunk in cut(_BODY, 3)] == [[]] * len(cut(_BODY, 3))
    assert events.finish() == [SseEvent("", _BODY)]
    assert not events.is_stream


def test_blanks_and_a_bom_before_the_body_are_skipped() -> None:
    assert parse(b" \n" * 1_000, b"\xef\xbb\xbf", _BODY) == [SseEvent("", _BODY)]
    assert parse(b"\n\n", _STREAM) == _EVENTS


def test_a_response_of_a_few_bytes_is_parsed_at_its_end() -> None:
    assert parse(b"{}") == [SseEvent("", b"{}")]
    assert parse(b"") == []


def test_compressed_bytes_are_decoded() -> None:
    assert parse(*cut(gzip.compress(_STREAM), 5), encoding="gzip") == _EVENTS


def test_there_are_no_events_after_bytes_that_cannot_be_decoded() -> None:
    assert parse(b"no gzip", gzip.compress(_STREAM), encoding="gzip") == []
    assert parse(_STREAM, encoding="unknown") == []


def test_a_body_above_the_bound_is_not_kept() -> None:
    chunk = b"[" + b" " * (MAX_BODY_BYTES // 2)
    assert parse(chunk, chunk, chunk) == []


def test_errors_in_a_field_of_their_own_are_events() -> None:
    assert parse(b'error: {"code":500}\n\n', content_type="text/event-stream") == [
        SseEvent("error", b'{"code":500}')
    ]
