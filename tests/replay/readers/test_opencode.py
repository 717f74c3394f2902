"""Sessions of opencode. The golden recordings show whole ones."""

import json
from typing import Any

from gateway.replay.readers import opencode
from gateway.replay.readers.document import find_fields, parse_file
from gateway.replay.recording import RecordedRequest
from tests.replay.samples import measured_peak


def _read(*messages: tuple[str, list[dict[str, Any]]], **info: Any) -> list[RecordedRequest]:
    listed: list[dict[str, Any]] = []
    for role, parts in messages:
        listed.append({"info": {"role": role, **info}, "parts": parts})
    document = parse_file(json.dumps({"info": {"id": "ses_1"}, "messages": listed}).encode())
    assert opencode.claims(document)
    return [*opencode.read(document, "fallback").list_requests()]


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_a_message_of_one_step_has_the_usage_of_the_message() -> None:
    tokens = {"input": 10, "output": 2, "reasoning": 1, "cache": {"read": 5, "write": 0}}
    requests = _read(("user", [_text("a")]), ("assistant", [_text("b")]), tokens=tokens)
    assert requests[0].usage is not None
    assert (requests[0].usage.prompt_tokens, requests[0].usage.output_tokens) == (15, 3)


def test_a_call_that_failed_has_its_error_as_the_result() -> None:
    call = {"type": "tool", "callID": "c", "tool": "bash", "state": {"status": "error", "error": "boom"}}
    requests = _read(("user", [_text("a")]), ("assistant", [call]), ("user", []), ("assistant", [_text("b")]))
    messages = json.loads(requests[1].body)["messages"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "bash", "arguments": "{}"}
    assert messages[2] == {"role": "tool", "tool_call_id": "c", "content": "boom"}
    assert json.loads(requests[1].body)["model"] == "fallback"


def test_a_step_without_a_word_is_no_reply() -> None:
    assert _read(("user", [_text("a")]), ("assistant", [{"type": "step-start"}])) == []


def test_files_of_the_storage_name_their_session() -> None:
    for value, group in (
        ({"id": "msg_1", "sessionID": "ses_1", "role": "user"}, "ses_1"),
        ({"id": "prt_1", "messageID": "msg_1", "sessionID": "ses_1"}, "ses_1"),
        ({"id": "ses_1", "projectID": "p", "title": "t"}, "ses_1"),
        ({"id": "ses_1", "title": "of another program"}, None),
        ({"sessionID": "ses_1"}, None),
    ):
        assert opencode.find_group(find_fields(json.dumps(value).encode()) or {}) == group


def test_the_bodies_of_a_long_session_are_never_in_memory_together() -> None:
    turns = [("user", [_text("x" * 2_000)]), ("assistant", [_text("y" * 2_000)])] * 200
    listed = [{"info": {"role": role}, "parts": parts} for role, parts in turns]
    document = parse_file(json.dumps({"info": {"id": "ses_1"}, "messages": listed}).encode())
    with measured_peak() as peak:
        recording = opencode.read(document, "m")
        assert sum(len(request.body) for request in recording.list_requests()) > 80_000_000
    assert recording.count == 200
    assert peak.size_bytes < 20_000_000
