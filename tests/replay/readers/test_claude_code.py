"""Session files of Claude Code. The golden recording shows a whole one."""

import json
from typing import Any

from gateway.replay.readers import claude_code
from gateway.replay.readers.document import parse_file
from gateway.replay.recording import RecordedRequest


def _line(uuid: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content}
    if role == "assistant":
        message |= {"id": more.pop("id", uuid), "model": more.pop("model", "claude-sample")}
    return {"type": role, "uuid": uuid, "parentUuid": parent, "message": message, **more}


def _read(*lines: dict[str, Any]) -> list[RecordedRequest]:
    data = "\n".join(map(json.dumps, lines)).encode()
    document = parse_file(data + b"\n{}\n")
    assert claude_code.claims(document)
    return [*claude_code.read(document, "fallback").list_requests()]


def _roles(request: RecordedRequest) -> list[str]:
    return [message["role"] for message in json.loads(request.body)["messages"]]


def _text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


def test_results_of_parallel_calls_are_no_rewind() -> None:
    """Each result has the line of its call as its parent, whatever came since."""
    calls: list[dict[str, Any]] = [
        {"type": "tool_use", "id": name, "name": "Read", "input": {}} for name in ("c1", "c2")
    ]
    results = [[{"type": "tool_result", "tool_use_id": name, "content": "x"}] for name in ("c1", "c2")]
    requests = _read(
        _line("u", None, "user", "Go."),
        _line("a1", "u", "assistant", calls[:1], id="m"),
        _line("r1", "a1", "user", results[0]),
        _line("a2", "a1", "assistant", calls[1:], id="m2"),
        _line("r2", "a2", "user", results[1]),
        _line("a3", "r2", "assistant", _text("Done.")),
    )
    assert [_roles(request) for request in requests] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user", "assistant", "user", "assistant", "user"],
    ]


def test_a_sub_agent_without_a_name_is_told_apart_by_its_lines() -> None:
    requests = _read(
        _line("u", None, "user", "Go."),
        _line("s", None, "user", "Look.", isSidechain=True),
        _line("t", "s", "assistant", _text("Found."), isSidechain=True),
        _line("a", "u", "assistant", _text("Done.")),
    )
    assert [len(_roles(request)) for request in requests] == [1, 1]
    assert [dict(request.headers).get("x-claude-code-agent-id") for request in requests] == [
        "sidechain",
        None,
    ]


def test_a_reply_that_nothing_came_before_is_no_request() -> None:
    assert _read(_line("a", None, "assistant", _text("Hello."))) == []


def test_other_lines_are_no_session() -> None:
    for data in (b'{"type": "user", "uuid": "x"}\n{"a": 1}\n', b'{"message": {}}\n{}\n'):
        assert not claude_code.claims(parse_file(data))
