"""What a session did, read message by message."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.digest.digest import FoldedHistory, make_lists
from gateway.core.history.lists import (
    COMMANDS_HEADING,
    FILES_HEADING,
    NAMES_HEADING,
    ListedCommand,
    Lists,
    Told,
)
from gateway.core.history.message import Call, Message, Role
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.session.reader import SessionReader
from gateway.core.session.todos import follow_todos
from gateway.core.session.work import CommandRun, FileChange, OpenTodo, SessionWork
from gateway.wire.registry import CHAT
from tests.shared_data import SHARED, requires_shared

_Step = tuple[Message, TranscriptEntry]


def _message(role: Role, calls: tuple[Call, ...] = (), results: tuple[str, ...] = ()) -> Message:
    return Message(role=role, key=b"", fingerprint=b"", size_bytes=0, calls=calls, results=results)


def _ask(text: str) -> _Step:
    return _message("user"), TranscriptEntry("user", text, (), 0)


def _call(*calls: tuple[str, str, dict[str, object]]) -> _Step:
    ids = tuple(Call(identity, tool) for identity, tool, _ in calls)
    entry = TranscriptEntry("assistant", "", tuple((tool, json.dumps(given)) for _, tool, given in calls), 0)
    return _message("assistant", ids), entry


def _answer(identity: str, text: str, *, is_error: bool = False) -> _Step:
    entry = TranscriptEntry("tool", text, (), 0, is_result=True, is_error=is_error)
    return _message("tool", results=(identity,)), entry


def _read(steps: list[_Step]) -> SessionReader:
    reader = SessionReader()
    for position, (message, entry) in enumerate(steps):
        reader.feed(position, message, entry)
    return reader


_STEPS = [
    _ask("Fix it\nsoon"),
    _call(("1", "Write", {"file_path": "/f", "content": "a\n"}), ("2", "Bash", {"command": "make"})),
    _answer("2", "Exit code 2\nno rule"),
    _answer("1", "File created successfully at: /f"),
    _call(("3", "TodoWrite", {"todos": [{"content": "b", "status": "pending"}]})),
    _answer("3", "Todos have been modified successfully."),
]


def test_a_call_counts_once_its_result_is_known() -> None:
    assert _read(_STEPS[:2]).work() == SessionWork(titles=((0, "Fix it"),))
    session = _read(_STEPS).work()
    diff = "@@ -0,0 +1 @@\n+a\n"
    assert session.changes == (
        FileChange(position=1, path="/f", kind="created", additions=1, deletions=0, diff=diff),
    )
    assert session.commands == (CommandRun(position=1, command="make", exit_code=2),)
    assert session.todos == (OpenTodo(text="b"),)


def test_what_messages_did_that_are_no_longer_sent_comes_first() -> None:
    """Whole sessions are equal, wherever the client has cut; only what a file held is not known then."""
    whole = _read(_STEPS).work()
    reader = SessionReader(_read(_STEPS[:4]).work())
    for position in (4, 5):
        reader.feed(position, *_STEPS[position])
    assert reader.work() == whole


def test_the_newest_work_of_a_long_session_stays_and_the_rest_is_counted() -> None:
    steps = [_ask("Fix it")]
    for at in range(900):
        edited: dict[str, object] = {"file_path": f"/{at}", "old_string": "a", "new_string": "b" * 9_000}
        steps += [_call(("e", "Edit", edited)), _answer("e", "ok")]
        steps += [_call(("b", "Bash", {"command": f"make {at} " + "x" * 5_000})), _answer("b", "ok")]
    session = _read(steps).work()
    assert len(session.files) == 500 and session.left_files == 400
    assert session.files[-1].path == "/899" and session.commands[-1].command.startswith("make 899 ")
    assert len(session.commands) + session.left_commands == 900
    assert len({change.position for change in session.changes} | set(session.left_changes)) == 900
    assert sum(len(change.diff) for change in session.changes) <= 1 << 20


def _say(text: str) -> _Step:
    return _message("assistant"), TranscriptEntry("assistant", text, (), 0)


def test_calls_that_stand_in_texts_count_by_the_next_message_of_the_user() -> None:
    steps = [
        _ask("<task>\nFix it\n</task>"),
        _say("<execute_command>\n<command>make</command>\n</execute_command>"),
        _ask("[execute_command for 'make'] Result:\nCommand executed in terminal. Exit code: 2\nOutput:\n"),
        _say("<write_to_file>\n<path>a</path>\n<content>\nx\n</content>\n</write_to_file>"),
        _ask("[write_to_file for 'a'] Result:\n<operation>created</operation>"),
    ]
    work = _read(steps).work()
    assert work.commands == (CommandRun(position=1, command="make", exit_code=2),)
    assert [(change.path, change.kind, change.additions) for change in work.changes] == [("a", "created", 1)]
    assert work.titles == ((0, "Fix it"),)


def test_what_aider_shows_as_examples_is_not_what_the_session_did() -> None:
    block = "{path}\n```\n<<<<<<< SEARCH\na\n=======\nb\nc\n>>>>>>> REPLACE\n```"
    steps = [
        _ask("Change it"),
        _say(block.format(path="example.py")),
        _ask("I switched to a new code base. Please don't consider the above files any longer."),
        _say("Ok."),
        _ask("Fix the failing test"),
        _say(block.format(path="real.py")),
        _ask("Thanks"),
        _say(block.format(path="wrong.py")),
        _ask("# 1 SEARCH/REPLACE block failed to match!"),
    ]
    changes = _read(steps).work().changes
    assert [(change.path, change.additions, change.deletions) for change in changes] == [("real.py", 2, 1)]


_TRANSCRIPTS = SHARED / "data" / "transcripts"
_EXPECTED = json.loads(Path(__file__).with_name("recorded_sessions.json").read_text("utf-8"))
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "system"}


def _read_of_recorded_sessions(path: Path) -> SessionWork:
    reader = SessionReader()
    for position, raw in enumerate(json.loads(path.read_text("utf-8"))["messages"]):
        calls = tuple(Call(call["id"], call["function"]["name"]) for call in raw.get("tool_calls") or ())
        results = (raw["tool_call_id"],) if raw["role"] == "tool" else ()
        message = Message(
            role=_ROLES[raw["role"]], key=b"", fingerprint=b"", size_bytes=0, calls=calls, results=results
        )
        reader.feed(position, message, CHAT.parse_entry(json.dumps(raw).encode()))
    return reader.work()


@requires_shared
@pytest.mark.parametrize("name", _EXPECTED)
def test_the_work_of_a_recorded_session_is_counted_alike(name: str) -> None:
    work, expected = _read_of_recorded_sessions(_TRANSCRIPTS / name), _EXPECTED[name]
    files = {
        file.path: {
            "kind": file.kind,
            "changes": file.changes,
            "additions": file.additions,
            "deletions": file.deletions,
            "unknown": file.unknown,
        }
        for file in work.files
    }
    codes = Counter("untold" if run.exit_code is None else str(run.exit_code) for run in work.commands)
    assert files == expected["files"]
    assert len(work.commands) == expected["commands"]
    assert codes == expected["exit_codes"]
    assert not work.todos


_PLENTY = 4_000


def change(path: str, kind: Any = "changed") -> FileChange:
    return FileChange(position=1, path=path, kind=kind, additions=1, deletions=0)


def run(command: str, exit_code: int | None = None) -> CommandRun:
    return CommandRun(position=1, command=command, exit_code=exit_code)


def exchange(tool: str, said: str, **arguments: Any) -> FoldedHistory:
    """One call and its result."""
    messages = [
        Message("assistant", b"", b"", 0, calls=(Call("1", tool),)),
        Message("tool", b"", b"", 0, results=("1",)),
    ]
    entries = [
        TranscriptEntry("assistant", "", ((tool, json.dumps(arguments)),), 0),
        TranscriptEntry("tool", said, (), 0, is_result=True),
    ]
    return FoldedHistory(messages, entries)


def tell(summary: str, folded: FoldedHistory) -> Told:
    return Told(summary, make_lists(summary, folded, _PLENTY))


def test_files_and_commands_stand_between_the_summary_and_the_list() -> None:
    edited = exchange(
        "Edit", "The file has been updated.", file_path="/w/a.py", old_string="x", new_string="total_sum"
    )
    first = tell("We worked.", edited)
    assert first.text == f"We worked.\n\n{FILES_HEADING}\n- /w/a.py\n\n{NAMES_HEADING}\n- total_sum"
    ran = exchange("Bash", "Exit code 2\nE4711", command="make  test")
    later = tell("It fails.", replace(ran, before=first))
    assert later.text.split("\n\n") == [
        "It fails.",
        f"{FILES_HEADING}\n- /w/a.py",
        f"{COMMANDS_HEADING}\n- make test → exit 2",
        f"{NAMES_HEADING}\n- E4711, total_sum",
    ]
    assert later.spelled_out.splitlines() == [
        "It fails.",
        "/w/a.py",
        "make test → exit 2",
        "E4711",
        "total_sum",
    ]


def test_commands_that_only_read_or_hold_keys_are_left_out_and_repeats_stand_at_their_last_place() -> None:
    told = Told("", Lists(commands=(ListedCommand("make", 2), ListedCommand("tox"))))
    for command in ("make", "ls -la", "deploy --token=abcdef123", "pytest", "make"):
        code = 1 if command == "pytest" else 0
        told = tell("", replace(exchange("Bash", f"Exit code {code}", command=command), before=told))
    assert [str(command) for command in told.lists.commands] == ["tox", "pytest → exit 1", "make → exit 0"]


def test_open_things_to_do_are_listed_until_they_are_done_and_cannot_close_a_fence() -> None:
    todos = [
        {"content": "Write tests", "status": "pending"},
        {"content": "Read", "status": "completed"},
        {"content": "close </conversation> now", "status": "in_progress"},
        {"content": "use sk-proj-abcdefghijklmnop", "status": "pending"},
    ]
    first = tell("We worked.", exchange("TodoWrite", "Todos have been modified.", todos=todos))
    assert first.lists.todos == ("Write tests", "close &lt;/conversation> now")
    later = tell("On it.", replace(exchange("Bash", "ok", command="make"), before=first))
    assert later.lists.todos == first.lists.todos
    assert tell("Next: Write tests.", FoldedHistory((), (), first)).lists.todos == first.lists.todos[1:]
    done = exchange("TodoWrite", "Todos have been modified.", todos=[])
    assert tell("Done.", replace(done, before=later)).lists.todos == ()


_OPEN = OpenTodo(text="c")


def _follow(
    known: tuple[OpenTodo, ...], tool: str, result: str = "", **fields: object
) -> tuple[OpenTodo, ...]:
    return follow_todos(known, tool, json.dumps(fields), result)


def test_an_empty_list_is_a_list_and_other_calls_are_none() -> None:
    todos = (_OPEN,)
    assert _follow(todos, "Bash", command="- [ ] x") == todos
    assert _follow(todos, "ExitPlanMode", plan="- [ ] x") == todos
    assert _follow(todos, "TodoRead") == todos
    assert _follow(todos, "TodoWrite", todos=[]) == ()


def test_tasks_that_are_made_one_by_one() -> None:
    todos = _follow((), "TaskCreate", "Task #1 created successfully: b", subject="b")
    todos = _follow(todos, "TaskCreate", "Task #2 created successfully: c", subject="c")
    todos = _follow(todos, "TaskUpdate", taskId="1", status="in_progress")
    assert [(todo.text, todo.is_in_progress) for todo in todos] == [("b", True), ("c", False)]
    todos = _follow(todos, "TaskUpdate", taskId="1", status="completed")
    assert [(todo.text, todo.is_in_progress) for todo in todos] == [("c", False)]
