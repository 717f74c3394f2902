"""What `refold export` writes. The golden recording shows a whole one."""

import json
from typing import Any

import pytest

from gateway.replay.errors import NotARecording
from gateway.replay.readers import gateway_export
from gateway.replay.readers.document import parse_file
from gateway.replay.recording import MESSAGES_PATH, RESPONSES_PATH, RecordedRequest
from tests.replay.samples import measured_peak


def _read(body: dict[str, Any], *lines: dict[str, Any], version: int = 1) -> list[RecordedRequest]:
    first = {"type": "gateway.export", "version": version}
    data = "\n".join(map(json.dumps, [first, {"type": "body", "body": body}, *lines])).encode()
    document = parse_file(data)
    assert gateway_export.claims(document)
    return [*gateway_export.read(document, "").list_requests()]


def _item(role: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": "x"}


def test_items_of_responses_are_cut_before_what_the_model_writes() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    items = [_item("user"), {"type": "reasoning"}, call, result, _item("assistant"), _item("user")]
    requests = _read({"model": "m", "store": False, "input": items})
    assert {request.path for request in requests} == {RESPONSES_PATH}
    assert [len(json.loads(request.body)["input"]) for request in requests] == [1, 4, 6]
    assert [len(request.reply) for request in requests] == [2, 1, 0]


def test_fields_beside_the_messages_stay() -> None:
    body = {"model": "m", "system": "Be brief.", "tools": [1], "messages": [{"role": "user", "content": "x"}]}
    request = _read(body)[0]
    assert request.path == MESSAGES_PATH
    assert json.loads(request.body) == body


def test_behind_a_compaction_the_size_is_that_of_what_came() -> None:
    point = {"type": "request", "messages": 1, "received": 70, "prompt_tokens": 9, "output_tokens": 2}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    usage = _read(body, point | {"plan": "pivot"})[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens) == (70, 2)
    usage = _read(body, point | {"plan": "passthrough"})[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens) == (9, 2)


def test_a_later_version_is_refused() -> None:
    with pytest.raises(NotARecording, match="version 2"):
        _read({}, version=2)


def test_an_export_without_a_body_has_no_requests() -> None:
    assert _read({}) == []


def test_the_bodies_of_a_long_conversation_are_never_in_memory_together() -> None:
    said = [{"role": role, "content": "x" * 2_000} for role in ("user", "assistant")] * 200
    lines = [
        {"type": "gateway.export", "version": 1},
        {"type": "body", "body": {"model": "m", "messages": said}},
    ]
    document = parse_file("\n".join(map(json.dumps, lines)).encode())
    with measured_peak() as peak:
        recording = gateway_export.read(document, "")
        assert sum(len(request.body) for request in recording.list_requests()) > 80_000_000
    assert recording.count == 200
    assert peak.size_bytes < 20_000_000
