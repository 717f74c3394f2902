import json

import pytest

from gateway.core.errors import RequestRefused
from gateway.wire.errors import render_stream_error
from gateway.wire.formats.registry import render_error

_REFUSED = RequestRefused(413, 'Too "large".', code="request_too_large")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/anything"])
def test_an_error_is_an_openai_object(path: str) -> None:
    assert json.loads(render_error(path, _REFUSED)) == {
        "error": {
            "message": 'Too "large".',
            "type": "invalid_request_error",
            "param": None,
            "code": "request_too_large",
        }
    }


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages/count_tokens"])
def test_an_error_on_anthropics_paths_is_an_anthropic_object(path: str) -> None:
    assert json.loads(render_error(path, _REFUSED)) == {
        "type": "error",
        "error": {"type": "request_too_large", "message": 'Too "large".'},
    }


def read_event(event: bytes) -> object:
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    return json.loads(event[6:])


def test_a_stream_that_fails_ends_with_the_upstreams_own_error() -> None:
    own = b'{\n "error": {"message": "no", "code": "context_length_exceeded", "new": [1]},\n "id": 7}'
    assert read_event(render_stream_error(own, 400)) == json.loads(own)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error":"text"}', b"\xff", b"[" * 9_999, b"null"])
def test_without_an_error_object_the_event_names_the_status(body: bytes) -> None:
    assert read_event(render_stream_error(body, 502)) == {
        "error": {
            "message": "upstream answered 502 after the stream had begun",
            "type": "upstream_error",
            "param": None,
            "code": 502,
        }
    }
