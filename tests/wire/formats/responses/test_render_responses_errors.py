import json

import pytest

from gateway.wire.formats.responses.render import render_stream_error

_OWN = {
    "message": "too long",
    "type": "invalid_request_error",
    "code": "context_length_exceeded",
    "param": "input",
}


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"error": _OWN}).encode(),
        b"event: response.failed\ndata: " + json.dumps({"response": {"error": _OWN}}).encode() + b"\n\n",
        b"event: error\ndata: " + json.dumps({**_OWN, "type": "error"}).encode() + b"\n\n",
    ],
)
def test_a_failure_in_a_stream_is_one_that_every_client_knows(body: bytes) -> None:
    event = render_stream_error(body, 400)
    name, data = event.removesuffix(b"\n\n").split(b"\n")
    told = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: response.failed" and told["type"] == "response.failed"
    assert told["response"]["status"] == "failed"
    assert told["response"]["error"] == {"code": "context_length_exceeded", "message": "too long"}
    # OpenAI's libraries raise for an `error` on the outside, whatever the event is called.
    assert told["error"]["message"] == "too long"


def test_a_failure_without_an_error_object_says_so_itself() -> None:
    told = json.loads(render_stream_error(b"<html>", 502).split(b"data: ")[1])
    assert told["response"]["error"]["code"] == "upstream_error"
    assert "502" in told["error"]["message"]
