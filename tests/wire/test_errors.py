import json

import pytest

from gateway.core.errors import RequestRefused
from gateway.wire.errors import parse_error, render_error, render_stream_error


def test_our_own_error_is_an_openai_object() -> None:
    error = RequestRefused(413, 'Too "large".', code="request_too_large")
    assert json.loads(render_error(error)) == {
        "error": {
            "message": 'Too "large".',
            "type": "invalid_request_error",
            "param": None,
            "code": "request_too_large",
        }
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":{"message":"no"},"id":7}', {"error": {"message": "no"}, "id": 7}),
        (b'data: {"error":{"message":"no"}}\n\n', {"error": {"message": "no"}}),
        (b'event: x\ndata: {"a":1}\n\ndata: {"error":{"a":1}}\n\n', {"error": {"a": 1}}),
        (b'{"type":"response.failed","response":{"error":{"a":1}}}', {"error": {"a": 1}}),
        (b'{"type":"error","message":"no"}', {"error": {"type": "error", "message": "no"}}),
        (b'{"error":"no"}', None),
        (b"<html>", None),
    ],
)
def test_the_object_that_holds_the_error_is_found(body: bytes, expected: object) -> None:
    assert parse_error(body) == expected


def parse_event(event: bytes) -> object:
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    return json.loads(event[6:])


def test_a_stream_that_fails_ends_with_the_upstreams_own_error() -> None:
    own = b'{\n "error": {"message": "no", "code": "context_length_exceeded", "new": [1]},\n "id": 7}'
    assert parse_event(render_stream_error(own, 400)) == json.loads(own)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error":"text"}', b"\xff", b"[" * 9_999, b"null"])
def test_without_an_error_object_the_event_names_the_status(body: bytes) -> None:
    assert parse_event(render_stream_error(body, 502)) == {
        "error": {
            "message": "upstream answered 502 after the stream had begun",
            "type": "upstream_error",
            "param": None,
            "code": 502,
        }
    }
