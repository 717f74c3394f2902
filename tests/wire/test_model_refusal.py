import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.model_refusal import is_model_unknown


def error(message: str, code: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": code}}).encode()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, error("The model `mini` does not exist or you do not have access to it.", "model_not_found")),
        (404, b'{"type":"error","error":{"type":"not_found_error","message":"model: mini"}}'),
        (404, b""),
        (404, b"<html>nothing here</html>"),
        (400, error("mini is not a valid model ID")),
        (400, error("Invalid model name passed in model=mini")),
        (403, error("Project p does not have access to model MINI", "model_not_found")),
        (422, b'{"detail": "Unknown model: mini"}'),
    ],
)
def test_a_model_that_is_not_served_is_recognised(status: int, body: bytes) -> None:
    assert is_model_unknown(status, body, "mini")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("This model's maximum context length is 8192 tokens.", "context_length_exceeded")),
        (400, error("'temperature' is not supported by this endpoint")),
        (400, b""),
        (401, error("The model `mini` does not exist", "model_not_found")),
        (429, error("mini is not available: rate limit")),
        (500, error("mini not found")),
    ],
)
def test_what_is_said_of_something_else_is_not(status: int, body: bytes) -> None:
    assert not is_model_unknown(status, body, "mini")


@given(st.sampled_from([400, 403, 404, 422]), st.binary(max_size=300), st.text(max_size=20))
def test_no_body_breaks_it(status: int, body: bytes, model: str) -> None:
    assert is_model_unknown(status, body, model) in (True, False)
