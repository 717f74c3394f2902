import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.refusal.overflow import Overflow, Refusal, parse_overflow
from gateway.wire.response.refusal import (
    is_model_unknown,
    parse_event_refusal,
    parse_refusal,
)
from gateway.wire.sse import SseEvent
from tests.shared_data import SHARED, requires_shared
from tests.wire.recorded import load_responses

_TEXT = "prompt is too long: 213462 tokens > 200000 maximum"
_OVERFLOW = Overflow(context=200_000, used=213_462, prompt_tokens=213_462)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _openai(text: str) -> bytes:
    error = {"message": text, "type": "invalid_request_error", "param": "messages", "code": None}
    return _json({"error": error})


# Bodies that give the text, by the name of their shape.
_SHAPES: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "html": lambda text: f"<html><head><title>{text}</title></head><body>nginx</body></html>".encode(),
    "string": _json,
    "openai": _openai,
    "openai_code": lambda text: _json({"error": {"message": "Bad Request", "code": text, "type": None}}),
    "openai_text": lambda text: _json({"error": text}),
    "anthropic": lambda text: _json(
        {"type": "error", "error": {"type": "invalid_request_error", "message": text}, "request_id": "req_1"}
    ),
    "fastapi": lambda text: _json({"detail": text}),
    "fastapi_object": lambda text: _json({"detail": {"error": {"message": text}}}),
    "fastapi_list": lambda text: _json({"detail": [{"type": "value_error", "loc": ["body"], "msg": text}]}),
    "message": lambda text: _json({"message": text, "code": "InvalidParameter"}),
    "bedrock": lambda text: _json({"__type": "ValidationException", "message": text}),
    "fault": lambda text: _json({"fault": {"faultstring": text}}),
    "aws": lambda text: _json({"Message": text, "code": 1}),
    "errors": lambda text: _json({"success": False, "errors": [{"code": 5021, "message": text}]}),
    "vllm": lambda text: _json({"object": "error", "message": text, "type": "BadRequestError", "code": 400}),
    "google": lambda text: _json([{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}]),
    "minimax": lambda text: _json(
        {"choices": None, "base_resp": {"status_code": 2013, "status_msg": text}, "id": "0"}
    ),
    "openrouter": lambda text: _json(
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": _openai(text).decode(), "provider_name": "DeepInfra"},
            }
        }
    ),
    "nested_message": lambda text: _json({"error": {"message": _openai(text).decode()}}),
    "broken": lambda text: _openai(text)[:-9],
}
_SHAPES_OF_GOOD_STATUS = sorted(set(_SHAPES) - {"plain", "html", "string", "broken", "aws", "fault"})


def _read(status: int, body: bytes) -> Overflow | None:
    refusal = parse_refusal(status, body)
    return parse_overflow(refusal) if refusal is not None else None


def _samples() -> Any:
    return json.loads((SHARED / "data" / "overflow_errors.json").read_text("utf-8"))


@requires_shared
@pytest.mark.parametrize("shape", sorted(_SHAPES))
@pytest.mark.parametrize("status", [400, 413, 422])
def test_every_recorded_overflow_is_found_in_every_shape(shape: str, status: int) -> None:
    for text in (text for provider in _samples()["positive"].values() for text in provider):
        assert _read(status, _SHAPES[shape](text)) == parse_overflow(Refusal(400, (text,))), text


@requires_shared
@pytest.mark.parametrize("shape", _SHAPES_OF_GOOD_STATUS)
def test_every_recorded_overflow_is_found_behind_a_good_status_and_in_a_stream(shape: str) -> None:
    for text in (text for provider in _samples()["positive"].values() for text in provider):
        expected = parse_overflow(Refusal(400, (text,)))
        body = _SHAPES[shape](text)
        assert expected is not None
        assert _read(200, body) == expected, text
        for name in ("message", "error"):
            refusal = parse_event_refusal(SseEvent(name, body))
            assert refusal is not None
            assert parse_overflow(refusal) == expected, text


@requires_shared
@pytest.mark.parametrize("shape", sorted(_SHAPES))
@pytest.mark.parametrize("status", [200, 400, 401, 413, 422, 429, 500, 529])
def test_no_other_recorded_error_is_an_overflow_in_any_shape(shape: str, status: int) -> None:
    for text in _samples()["negative"]:
        assert _read(status, _SHAPES[shape](text)) is None, text
        refusal = parse_event_refusal(SseEvent("error", _SHAPES[shape](text)))
        assert refusal is not None
        assert parse_overflow(refusal) is None, text


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":{"message":"%s","code":400}}',
        b'{"type":"error","error":{"type":"invalid_request_error","message":"%s"}}',
        b'{"type":"error","code":"x","message":"%s","param":null,"sequence_number":2}',
        b'{"type":"response.failed","response":{"status":"failed","error":{"code":"x","message":"%s"}}}',
        b'{"object":"error","message":"%s"}',
        b'{"choices":[{"delta":{"content":""},"error":{"message":"%s"},"finish_reason":"error"}]}',
        b'{"id":"1","choices":[]}\n{"error":{"message":"%s"}}',
    ],
)
def test_an_error_event_is_parsed(data: bytes) -> None:
    refusal = parse_event_refusal(SseEvent("message", data % _TEXT.encode()))
    assert refusal is not None
    assert refusal.status == 200
    assert parse_overflow(refusal) == _OVERFLOW


def test_an_event_named_error_may_be_plain_text() -> None:
    refusal = parse_event_refusal(SseEvent("error", _TEXT.encode()))
    assert refusal == Refusal(200, (_TEXT,))


def test_numbers_in_fields_are_found() -> None:
    error = {
        "code": 400,
        "message": "the request exceeds the available context size, try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 9000,
        "n_ctx": 4096,
    }
    expected = Overflow(context=4096, used=9000, prompt_tokens=9000)
    assert _read(400, _json({"error": error})) == expected
    assert _read(500, _json({"error": error})) == expected


def test_texts_are_in_order_of_trust() -> None:
    body = _json({"error": {"type": "t", "code": "c", "param": "p", "message": "m"}, "request_id": "r"})
    assert parse_refusal(400, body) == Refusal(400, ("m", "c", "t"))


def test_the_request_that_a_validation_error_echoes_is_ignored() -> None:
    request = {"messages": [{"role": "user", "content": _TEXT, "message": [_TEXT]}]}
    detail = {"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": request}
    assert parse_refusal(422, _json({"detail": [detail]})) == Refusal(422, ("Field required", "missing"))
    flagged = {"error": {"message": "flagged", "code": 403, "metadata": {"flagged_input": _TEXT}}}
    assert parse_refusal(403, _json(flagged)) == Refusal(403, ("flagged", "403"))


def test_an_echo_that_was_cut_off_is_ignored_too() -> None:
    request = {
        "messages": [{"role": "user", "content": f'he said "{_TEXT}", {{"message": "{_TEXT}"}} ' * 900}]
    }
    detail = {"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": request}
    whole = _json({"detail": [detail]})
    assert len(whole) > 65_536
    assert _read(422, whole[:65_536]) is None
    assert _read(422, whole[:3_000]) is None


def test_a_rate_limit_of_a_provider_behind_a_router_is_not_an_overflow() -> None:
    raw = '{"error":{"message":"Too many tokens","code":"rate_limit_exceeded"}}'
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}
    assert _read(200, _json({"error": error})) is None
    assert _read(200, _json({"error": {"message": _TEXT, "code": 429}})) is None


@pytest.mark.parametrize("body", [b"", b"  \n"])
def test_a_refusal_without_a_body_is_marked_as_empty(body: bytes) -> None:
    assert parse_refusal(413, body) == Refusal(413, (), is_empty=True)
    assert _read(413, body) == Overflow()
    assert parse_refusal(200, body) is None


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b'{"error":{}}', b'{"ok":false}'])
def test_a_refusal_without_known_fields_is_not_an_overflow(body: bytes) -> None:
    assert _read(400, body) is None


def test_unknown_fields_are_ignored_because_they_may_hold_the_users_text() -> None:
    assert parse_refusal(400, _json({"payload": {"text": _TEXT}, "code": 7})) == Refusal(400, ("7",))


def test_a_completion_about_overflows_is_not_a_refusal() -> None:
    message = {"role": "assistant", "content": _TEXT, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"object": "chat.completion", "choices": [choice], "usage": {"prompt_tokens": 1}, "error": None}
    assert parse_refusal(200, _json(body)) is None
    assert parse_refusal(200, _json(body | {"base_resp": {"status_code": 0, "status_msg": ""}})) is None
    assert parse_refusal(200, _TEXT.encode()) is None
    assert parse_event_refusal(SseEvent("message", _json(body))) is None


@requires_shared
def test_no_recorded_response_is_a_refusal() -> None:
    for response in load_responses():
        if not response.is_stream:
            assert parse_refusal(200, response.body) is None, response.file


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"message": {"content": ""}, "finish_reason": "model_context_window_exceeded"}]},
        {"choices": [{"delta": {}, "finish_reason": "model_context_window_exceeded"}]},
        {"type": "message", "content": [], "stop_reason": "model_context_window_exceeded"},
        {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}},
    ],
)
def test_a_reply_that_is_empty_because_the_window_is_full_is_a_refusal(document: dict[str, Any]) -> None:
    refusal = Refusal(200, ("model_context_window_exceeded",))
    assert parse_refusal(200, _json(document)) == refusal
    assert parse_event_refusal(SseEvent("message", _json(document))) == refusal
    assert parse_overflow(refusal) == Overflow()


def test_a_reply_cut_because_the_window_is_full_is_not_a_refusal() -> None:
    choice = {"message": {"content": "half"}, "finish_reason": "model_context_window_exceeded"}
    assert parse_refusal(200, _json({"choices": [choice]})) is None


_VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just('{"error":"{}"}'),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "detail", "choices", "type", "raw", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.integers(100, 599), _VALUES | st.binary())
def test_no_body_raises_an_error(status: int, value: object) -> None:
    body = value if isinstance(value, bytes) else _json(value)
    refusal = parse_refusal(status, body)
    parse_event_refusal(SseEvent("message", body))
    assert (refusal is not None) or 200 <= status < 400
    if refusal is not None:
        assert refusal.status == status
        parse_overflow(refusal)


def test_deep_and_wide_errors_stay_bounded() -> None:
    deep: object = _TEXT
    for _ in range(200):
        deep = {"error": deep}
    wide = {"errors": [{"message": f"m{i}"} for i in range(10_000)]}
    found = parse_refusal(400, _json(wide))
    assert found is not None and len(found.texts) <= 24
    assert parse_refusal(400, _json(deep)) is not None
    assert parse_refusal(400, b"[" * 1_000_000) is not None
    huge = parse_refusal(400, b"x" * 10_000_000)
    assert huge is not None
    assert sum(map(len, huge.texts)) < 100_000


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
def test_an_error_about_an_unknown_model_is_recognized(status: int, body: bytes) -> None:
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
def test_an_error_about_something_else_is_not_about_the_model(status: int, body: bytes) -> None:
    assert not is_model_unknown(status, body, "mini")


@given(st.sampled_from([400, 403, 404, 422]), st.binary(max_size=300), st.text(max_size=20))
def test_no_body_raises_an_error_when_asked_about_the_model(status: int, body: bytes, model: str) -> None:
    assert is_model_unknown(status, body, model) in (True, False)
