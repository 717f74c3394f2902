"""Errors of an upstream: as a body, and as events before the first content of a stream."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.refusal import Overflow, Refusal, parse_overflow
from gateway.wire.reader import MAX_START_BYTES, Refused, Started, StreamStart, Undecided, Verdict
from gateway.wire.refusal import is_model_unknown, parse_event_refusal, parse_refusal
from gateway.wire.sse import SseEvent
from tests.shared_data import SHARED, requires_shared
from tests.wire.recorded import cut, cut_anywhere, draw_cuts, load_responses
from tests.wire.shapes import A_REPLY, Shape, in_each_format

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
def test_every_recorded_overflow_is_found_in_every_shape(shape: str) -> None:
    for text in (text for provider in _samples()["positive"].values() for text in provider):
        for status in (400, 413, 422):
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
def test_no_other_recorded_error_is_an_overflow_in_any_shape(shape: str) -> None:
    for text in _samples()["negative"]:
        for status in (200, 400, 401, 413, 422, 429, 500, 529):
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
        *((404, b""), (404, b"<html>nothing here</html>"), (400, error("mini is not a valid model ID"))),
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


_ERROR = {"error": {"message": _TEXT, "code": 400}}


def _event(document: object, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document)}\n\n".encode()


def _chunk(finish: str | None = None, **delta: object) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None})


_ROLE = _chunk(role="assistant", content="")
_PREAMBLES = [
    *(b": OPENROUTER PROCESSING\n\n", b"event: ping\ndata: {}\n\n", b"retry: 3000\n\n", b"data:\n\n"),
    *(_ROLE, _chunk(content=""), _event({"choices": [], "prompt_filter_results": []})),
    _event({"choices": [], "usage": {"prompt_tokens": 3}}),
    _event({"type": "message_start", "message": {"content": []}}, "message_start"),
    *(_event({"type": "ping"}, "ping"), _event({"type": "keepalive"}, "keepalive")),
    _event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}),
    _event({"type": "response.created", "response": {"status": "in_progress"}}, "response.created"),
    _event({"type": "response.in_progress", "response": {"status": "in_progress"}}),
]
_STARTS = [
    *(_chunk(content="x"), _chunk(reasoning_content="x")),
    _chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f"}}]),
    *(_chunk(refusal="no"), _chunk("stop"), _chunk("length"), b"data: [DONE]\n\n"),
    _event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}),
    _event({"type": "response.output_item.added", "item": {}}),
    _event({"type": "response.completed", "response": {"status": "completed"}}),
]
_REFUSALS = [
    _event(_ERROR),
    _event({"type": "error"} | _ERROR, "error"),
    _event({"type": "response.failed", "response": {"status": "failed"} | _ERROR}, "response.failed"),
    b"error: " + json.dumps(_ERROR["error"]).encode() + b"\n\n",
    f"event: error\ndata: {_TEXT}\n\n".encode(),
]


def _feed(*chunks: bytes) -> Verdict:
    start = StreamStart()
    verdict: Verdict = Undecided()
    for chunk in chunks:
        verdict = start.feed(chunk)
    return verdict


def _whole(*chunks: bytes) -> Verdict:
    start = StreamStart()
    for chunk in chunks:
        start.feed(chunk)
    return start.finish()


@pytest.mark.parametrize("preamble", _PREAMBLES)
def test_events_before_the_reply_decide_nothing(preamble: bytes) -> None:
    assert _feed(preamble * 20) == Undecided()
    assert _feed(preamble, _chunk(content="x")) == Started()


@pytest.mark.parametrize("first", _STARTS)
def test_the_first_content_or_the_end_starts_the_stream(first: bytes) -> None:
    assert _feed(*_PREAMBLES, first) == Started()


@pytest.mark.parametrize("refusal", _REFUSALS)
def test_an_error_before_the_first_content_is_a_refusal(refusal: bytes) -> None:
    verdict = _feed(*_PREAMBLES, refusal)
    assert isinstance(verdict, Refused)
    assert parse_overflow(verdict.refusal) == Overflow(context=200_000, used=213_462, prompt_tokens=213_462)


def test_an_error_after_the_first_content_is_not_a_refusal() -> None:
    assert _feed(_ROLE, _chunk(content="x"), _event(_ERROR)) == Started()
    assert _feed(_ROLE + _chunk(content="x") + _event(_ERROR)) == Started()


@pytest.mark.parametrize(
    "end",
    [
        _chunk("model_context_window_exceeded", content=""),
        _event({"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}}),
    ],
)
def test_a_full_window_before_any_content_is_a_refusal(end: bytes) -> None:
    assert _feed(_ROLE, end) == Refused(Refusal(200, ("model_context_window_exceeded",)))
    assert _feed(_ROLE, _chunk(content="x"), end) == Started()
    assert _feed(_chunk("model_context_window_exceeded", content="x")) == Started()


def test_the_verdict_never_changes_once_it_is_made() -> None:
    start = StreamStart()
    assert isinstance(start.feed(_event(_ERROR)), Refused)
    assert isinstance(start.feed(_chunk(content="x")), Refused)
    assert isinstance(start.finish(), Refused)


def test_events_of_an_unknown_kind_are_not_held_back_for_long() -> None:
    unknown = _event({"token": {"text": "x"}})
    assert _feed(unknown * 3) == Undecided()
    assert _feed(unknown * 3 + b"data: not json\n\n") == Started()
    assert isinstance(_feed(unknown * 3 + _event(_ERROR)), Refused)


def test_a_long_stream_without_content_is_not_held_back_forever() -> None:
    comment = b": " + b"x" * 1021 + b"\n"
    assert _feed(comment * (MAX_START_BYTES // 1024 - 1)) == Undecided()
    assert _feed(comment * (MAX_START_BYTES // 1024)) == Started()
    assert _feed(comment * (MAX_START_BYTES // 1024) + b"\n" + _event(_ERROR)) == Started()


def test_a_stream_that_ends_early_is_sent_downstream() -> None:
    assert _whole() == Started()
    assert _whole(_ROLE) == Started()
    assert _whole(b"data: {") == Started()


def test_a_json_error_in_place_of_a_stream_is_a_refusal() -> None:
    body = json.dumps(_ERROR).encode()
    assert _feed(body) == Undecided()
    assert isinstance(_whole(body), Refused)
    assert _whole(b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}') == Started()


_ENDS = [b"\n\n", b"\r\n\r\n", b"\r\r"]
_ANY = st.sampled_from([*_PREAMBLES, *_STARTS, *_REFUSALS, _event({"x": 1}), b"\xef\xbb\xbf", b"{"])


@given(st.lists(_ANY, max_size=8), st.sampled_from(_ENDS), st.data())
@example([_ROLE, _REFUSALS[0]], b"\r\n\r\n", None)
def test_cuts_never_change_the_verdict(events: list[bytes], end: bytes, data: st.DataObject | None) -> None:
    stream = b"".join(events).replace(b"\n\n", end)
    for chunks in (draw_cuts(data, stream) if data else [], cut(stream, 1)):
        if chunks:
            assert (_feed(*chunks), _whole(*chunks)) == (_feed(stream), _whole(stream))
    assert _whole(stream) != Undecided()


def check_start(stream: bytes) -> None:
    """It starts; and an error before its first content is a refusal."""
    assert _feed(stream) == _feed(*cut_anywhere(stream, 7)) == Started()
    blocks = stream.split(b"\n\n")
    count = 0
    while _feed(b"\n\n".join(blocks[: count + 1]) + b"\n\n") == Undecided():
        count += 1
    preamble = b"".join(block + b"\n\n" for block in blocks[:count])
    verdict = _feed(preamble, _event(_ERROR))
    assert isinstance(verdict, Refused) and parse_overflow(verdict.refusal) == _OVERFLOW


@in_each_format
def test_a_stream_of_each_format_starts(shape: Shape) -> None:
    check_start(shape.stream(A_REPLY))


@requires_shared
def test_recorded_responses_are_no_refusals_and_their_streams_start() -> None:
    for response in load_responses():
        if response.is_stream:
            check_start(response.body)
        else:
            assert parse_refusal(200, response.body) is None, response.file
