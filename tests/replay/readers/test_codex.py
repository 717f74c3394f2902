"""Rollouts of Codex. The golden recordings show whole ones."""

import json
from typing import Any

from gateway.replay.readers import codex
from gateway.replay.readers.document import parse_file
from gateway.replay.recording import RecordedRequest


def _message(role: str, words: str) -> dict[str, Any]:
    item = {"type": "message", "role": role, "content": [{"type": "input_text", "text": words}]}
    return {"type": "response_item", "payload": item}


def _usage(tokens: int) -> dict[str, Any]:
    info = {"last_token_usage": {"input_tokens": tokens, "output_tokens": 1}}
    return {"type": "event_msg", "payload": {"type": "token_count", "info": info}}


def _read(*lines: dict[str, Any]) -> list[RecordedRequest]:
    document = parse_file("\n".join(map(json.dumps, lines)).encode() + b"\n")
    assert codex.claims(document)
    return [*codex.read(document, "fallback").list_requests()]


def test_usage_belongs_to_the_reply_before_it_and_the_newest_counts() -> None:
    requests = _read(
        _usage(1),
        _message("user", "a"),
        _message("assistant", "b"),
        _usage(10),
        _usage(11),
        _message("user", "c"),
        _message("assistant", "d"),
        _usage(20),
    )
    assert [request.usage.prompt_tokens for request in requests if request.usage] == [11, 20]


def test_each_request_brings_its_whole_history() -> None:
    requests = _read(
        _message("user", "a"), _message("assistant", "b"), _message("user", "c"), _message("assistant", "d")
    )
    bodies = [json.loads(request.body) for request in requests]
    assert [len(body["input"]) for body in bodies] == [1, 3]
    assert all(body["store"] is False for body in bodies)
    assert "instructions" not in bodies[0]


def test_the_instructions_may_stand_in_an_object() -> None:
    meta = {"type": "session_meta", "payload": {"id": "x", "base_instructions": {"text": "Be brief."}}}
    requests = _read(meta, _message("user", "a"), _message("assistant", "b"))
    assert json.loads(requests[0].body)["instructions"] == "Be brief."


def test_other_lines_are_no_rollout() -> None:
    for data in (b'{"type": "response_item"}\n{}\n', b'{"type": "message"}\n{}\n'):
        assert not codex.claims(parse_file(data))
