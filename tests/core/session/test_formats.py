"""Calls and results of all formats, as the wire formats read them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.history.message import Message
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.session.reader import SessionReader
from gateway.core.session.work import CommandRun, OpenTodo, SessionWork
from gateway.wire.formats.messages import request as messages_request
from gateway.wire.formats.messages import text as messages_text
from gateway.wire.formats.responses import request as responses_request
from gateway.wire.formats.responses import text as responses_text

_PATCH = "*** Begin Patch\n*** Update File: f.py\n@@\n-a\n+b\n+c\n*** End Patch"
_HEREDOC = f"apply_patch <<'EOF'\n{_PATCH}\nEOF"
_EXITED = "Chunk ID: x\nWall time: 0.1 seconds\nProcess exited with code {code}\nOutput:\n"


def _read(
    parse_message: Callable[[bytes, bytes], Message],
    parse_entry: Callable[[bytes], TranscriptEntry],
    items: Sequence[dict[str, Any]],
) -> SessionWork:
    reader = SessionReader()
    for position, item in enumerate(items):
        raw = json.dumps(item).encode()
        reader.feed(position, parse_message(raw, b"t"), parse_entry(raw))
    return reader.work()


def _call(identity: str, name: str, arguments: object) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "call_id": identity, "arguments": json.dumps(arguments)}


def _output(identity: str, output: str, kind: str = "function_call") -> dict[str, Any]:
    return {"type": f"{kind}_output", "call_id": identity, "output": output}


def test_items_of_codex() -> None:
    created = {"type": "create_file", "path": "n.py", "diff": "+x\n+y"}
    deleted = {"type": "delete_file", "path": "n.py"}
    shell = {"type": "exec", "command": ["bash", "-lc", "ls"]}
    done = {"output": "Success. Updated the following files:\nM f.py\n", "metadata": {"exit_code": 0}}
    work = _read(
        responses_request.parse_message,
        responses_text.parse_entry,
        [
            {"role": "user", "content": [{"type": "input_text", "text": "Fix it"}]},
            {"type": "custom_tool_call", "name": "apply_patch", "call_id": "1", "input": _PATCH},
            _output("1", json.dumps(done), "custom_tool_call"),
            _call("2", "exec_command", {"cmd": _HEREDOC}),
            _output("2", _EXITED.format(code=0)),
            _call("3", "exec_command", {"cmd": "make"}),
            _output("3", _EXITED.format(code=2)),
            {"type": "local_shell_call", "call_id": "4", "status": "completed", "action": shell},
            _output("4", json.dumps({"output": "x", "metadata": {"exit_code": 1}}), "local_shell_call"),
            {"type": "apply_patch_call", "call_id": "5", "status": "completed", "operation": created},
            {**_output("5", "ok", "apply_patch_call"), "status": "completed"},
            {"type": "apply_patch_call", "call_id": "6", "status": "completed", "operation": deleted},
            {**_output("6", "no", "apply_patch_call"), "status": "failed"},
            _call("7", "update_plan", {"plan": [{"step": "s", "status": "in_progress"}]}),
            _output("7", "Plan updated"),
        ],
    )
    changes = [(each.position, each.path, each.kind, each.additions, each.deletions) for each in work.changes]
    assert changes == [
        (1, "f.py", "changed", 2, 1),
        (3, "f.py", "changed", 2, 1),
        (9, "n.py", "created", 2, 0),
    ]
    assert work.commands == (
        CommandRun(position=5, command="make", exit_code=2),
        CommandRun(position=7, command="ls", exit_code=1),
    )
    assert work.todos == (OpenTodo(text="s", is_in_progress=True),)
    assert work.titles == ((0, "Fix it"),)


def test_blocks_of_claude_code_whose_results_come_in_another_order() -> None:
    edit = {"old_string": "a", "new_string": "b"}
    calls = [("a", "Edit", {"file_path": "/f", **edit}), ("b", "Edit", {"file_path": "/g", **edit})]
    calls.append(("c", "Bash", {"command": "ls"}))
    uses = [{"type": "tool_use", "id": key, "name": name, "input": given} for key, name, given in calls]
    results = [
        {"type": "tool_result", "tool_use_id": "b", "content": "oops", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "Exit code 3\n"}]},
        {"type": "tool_result", "tool_use_id": "a", "content": "The file /f has been updated successfully."},
        {"type": "text", "text": "<system-reminder>x</system-reminder>"},
    ]
    work = _read(
        messages_request.parse_message,
        messages_text.parse_entry,
        [
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": uses},
            {"role": "user", "content": results},
        ],
    )
    assert [(each.path, each.additions, each.deletions) for each in work.changes] == [("/f", 1, 1)]
    assert work.commands == (CommandRun(position=1, command="ls", exit_code=3),)
    assert work.titles == ((0, "Go"),)
