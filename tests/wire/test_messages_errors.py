import json

import pytest

from gateway.core.errors import RequestRefused
from gateway.wire.messages_errors import render_error, render_stream_error

_OWN = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"}


def read_event(event: bytes) -> object:
    assert event.startswith(b"event: error\ndata: ") and event.endswith(b"\n\n")
    return json.loads(event.removeprefix(b"event: error\ndata: "))


@pytest.mark.parametrize(
    "body", [json.dumps(_OWN).encode(), f"event: error\ndata: {json.dumps(_OWN)}\n\n".encode()]
)
def test_upstreams_own_error_becomes_the_event(body: bytes) -> None:
    assert read_event(render_stream_error(body, 529)) == _OWN


def test_an_error_in_other_words_gets_the_frame_that_clients_look_for() -> None:
    assert read_event(render_stream_error(b'{"error":{"message":"no"}}', 400)) == {
        "type": "error",
        "error": {"message": "no"},
    }


@pytest.mark.parametrize(
    ("status", "kind"), [(502, "api_error"), (503, "overloaded_error"), (418, "api_error")]
)
def test_without_an_error_object_the_status_is_named(status: int, kind: str) -> None:
    message = f"upstream answered {status} after the stream had begun"
    expected = {"type": "error", "error": {"type": kind, "message": message}}
    assert read_event(render_stream_error(b"<html>", status)) == expected


def test_our_own_errors_are_of_the_types_that_clients_know() -> None:
    found = json.loads(render_error(RequestRefused(413, "Too large.")))
    assert found == {"type": "error", "error": {"type": "request_too_large", "message": "Too large."}}
