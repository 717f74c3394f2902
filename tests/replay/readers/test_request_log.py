"""Logs of requests."""

import json
from typing import Any

import pytest

from gateway.replay.readers import request_log
from gateway.replay.readers.document import parse_file
from gateway.replay.recording import CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH, RecordedRequest

_BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
_USAGE = {"prompt_tokens": 30, "completion_tokens": 4}
_MESSAGE = {"role": "assistant", "content": "hi"}


def _read_all(value: object) -> list[RecordedRequest]:
    return [*request_log.read(parse_file(json.dumps(value).encode()), "").list_requests()]


def _read(value: object) -> RecordedRequest:
    return _read_all(value)[0]


@pytest.mark.parametrize(
    "entry",
    [
        _BODY,
        {"body": _BODY},
        {"body": json.dumps(_BODY)},
        {"request": _BODY},
        {"request": {"method": "POST", "body": _BODY}},
        {"request_body": json.dumps(_BODY)},
        {"request": {"url": "https://x/v1/chat/completions", "postData": {"text": json.dumps(_BODY)}}},
    ],
)
def test_the_body_is_found_wherever_logs_put_it(entry: dict[str, Any]) -> None:
    assert request_log.claims(parse_file(json.dumps(entry).encode()))
    request = _read(entry)
    assert json.loads(request.body) == _BODY
    assert request.path == CHAT_PATH


def test_the_bytes_of_a_body_stay_as_they_are() -> None:
    raw = b'{"model":"m",  "messages":[{"role":"user","content":"\\u00e9 1.10"}]}'
    request = next(request_log.read(parse_file(b'{"body":%b}' % raw), "").list_requests())
    assert request.body == raw


@pytest.mark.parametrize("name", ["interactions", "requests"])
def test_entries_may_stand_in_an_array_or_in_lines(name: str) -> None:
    entries = [{"body": _BODY}, {"body": {"other": 1}}, {"body": _BODY}]
    assert len(_read_all({name: entries})) == 2
    assert len(_read_all({"log": {"entries": entries}})) == 2
    assert len(_read_all(entries)) == 2
    lines = "\n".join(map(json.dumps, entries)).encode()
    recording = request_log.read(parse_file(lines + b"\n{broken\n"), "")
    assert (recording.count, recording.skipped) == (2, 2)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"model": "m", "input": [{"role": "user", "content": "x"}]}, RESPONSES_PATH),
        (_BODY | {"system": "be brief"}, MESSAGES_PATH),
        (
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            MESSAGES_PATH,
        ),
        (_BODY, CHAT_PATH),
    ],
)
def test_the_format_is_known_by_the_body_where_no_path_was_recorded(body: object, path: str) -> None:
    assert _read(body).path == path


@pytest.mark.parametrize(
    "url",
    ["/v1/messages?beta=true", "https://api.anthropic.com/v1/messages", "https://x/proxy/api/v1/messages"],
)
def test_a_recorded_path_decides(url: str) -> None:
    assert _read({"url": url, "body": _BODY}).path == MESSAGES_PATH


@pytest.mark.parametrize(
    "response",
    [
        {"usage": _USAGE, "choices": [{"message": _MESSAGE}]},
        {"status": 200, "body": json.dumps({"usage": _USAGE, "choices": [{"message": _MESSAGE}]})},
        {"content": {"text": json.dumps({"usage": _USAGE, "choices": [{"message": _MESSAGE}]})}},
        json.dumps({"usage": _USAGE, "choices": [{"message": _MESSAGE}]}),
    ],
)
def test_usage_and_reply_come_from_the_response(response: object) -> None:
    request = _read({"body": _BODY, "response": response})
    assert request.usage is not None
    assert (request.usage.prompt_tokens, request.usage.output_tokens) == (30, 4)
    assert [json.loads(raw) for raw in request.reply] == [_MESSAGE]
    assert not request.has_failed


def test_the_usage_of_a_stream_is_found_in_its_text() -> None:
    stream = f"data: {json.dumps({'choices': [], 'usage': _USAGE})}\n\ndata: [DONE]\n\n"
    request = _read({"body": _BODY, "response_body": stream})
    assert request.usage is not None
    assert request.usage.prompt_tokens == 30


def test_usage_of_anthropic_adds_what_its_cache_had() -> None:
    usage = {"input_tokens": 4, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 10}
    content = {"role": "assistant", "content": [{"type": "text", "text": "hi"}], "usage": usage}
    request = _read({"path": "/v1/messages", "body": _BODY, "response": content})
    assert request.usage is not None
    assert request.usage.prompt_tokens == 114
    assert json.loads(request.reply[0])["content"] == content["content"]


@pytest.mark.parametrize(
    "entry", [{"status": 400}, {"response": {"status_code": 429}}, {"response": {"error": {"message": "no"}}}]
)
def test_a_failed_request_is_known_as_such(entry: dict[str, Any]) -> None:
    assert _read({"body": _BODY, **entry}).has_failed


def test_headers_are_read_in_every_form() -> None:
    expected = (("X-Session-Id", "s1"),)
    assert _read({"body": _BODY, "headers": {"X-Session-Id": "s1", "n": 3}}).headers == expected
    assert _read({"body": _BODY, "headers": [["X-Session-Id", "s1"], ["bad"]]}).headers == expected
    har = [{"name": "X-Session-Id", "value": "s1"}, {"name": ":authority", "value": "x"}]
    assert _read({"request": {"body": _BODY, "headers": har}}).headers == expected


def test_other_objects_are_no_requests() -> None:
    others: list[dict[str, object]] = [
        {"model": "m", "input": ["text to embed"]},
        {"messages": []},
        {"a": {"b": 1}},
    ]
    for value in others:
        assert not request_log.claims(parse_file(json.dumps(value).encode()))


@pytest.mark.parametrize("url", ["http://[", "http://a\u2100b/v1/chat/completions", "//[::1"])
def test_an_address_that_is_none_is_passed_over(url: str) -> None:
    assert _read({"url": url, "body": _BODY}).path == CHAT_PATH
