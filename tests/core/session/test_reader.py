import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.message import Call, Message, Role
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.session.reader import SessionReader
from gateway.core.session.work import CommandRun, FileChange, OpenTodo, SessionWork

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
_WORK = SessionWork(
    changes=(
        FileChange(
            position=1, path="/f", kind="created", additions=1, deletions=0, diff="@@ -0,0 +1 @@\n+a\n"
        ),
    ),
    commands=(CommandRun(position=1, command="make", exit_code=2),),
    todos=(OpenTodo(text="b"),),
    titles=((0, "Fix it"),),
)


def test_what_the_messages_did() -> None:
    assert _read(_STEPS).work() == _WORK


def test_results_in_one_message_answer_their_calls() -> None:
    first = TranscriptEntry("tool", "Exit code 2\nno rule", (), 0, is_result=True)
    second = TranscriptEntry("tool", "File created successfully at: /f", (), 0, is_result=True)
    words = TranscriptEntry("user", "And now?", (), 0)
    together = TranscriptEntry("tool", first.text, (), 0, is_result=True, more=(second, words))
    work = _read([*_STEPS[:2], (_message("user", results=("2", "1")), together)]).work()
    assert work.commands == _WORK.commands
    assert work.changes == _WORK.changes
    assert work.titles == ((0, "Fix it"), (2, "And now?"))


def test_a_call_without_a_result_is_not_counted_yet() -> None:
    assert _read(_STEPS[:2]).work() == SessionWork(titles=_WORK.titles)


def test_a_failed_edit_and_a_refused_command_do_not_count() -> None:
    steps = [
        _STEPS[0],
        _STEPS[1],
        _answer("1", "whatever", is_error=True),
        _answer("2", "The user doesn't want to proceed with this tool use."),
    ]
    assert _read(steps).work() == SessionWork(titles=_WORK.titles)


def test_a_patch_passed_to_a_shell_is_a_change_and_no_command() -> None:
    patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: f\n*** End Patch\nEOF"
    call = _call(("1", "shell", {"command": ["bash", "-lc", patch]}))
    done = _read([call, _answer("1", "Exit code: 0\nOutput:\nSuccess. Updated the following files:\nD f")])
    assert [(change.path, change.kind) for change in done.work().changes] == [("f", "deleted")]
    assert done.work().commands == ()
    assert _read([call, _answer("1", "Exit code: 1\nOutput:\nbad patch")]).work().changes == ()


def test_a_reader_goes_on_where_a_work_ended() -> None:
    reader = SessionReader.restore(_WORK)
    assert reader.work() == _WORK
    for position, (message, entry) in enumerate(
        [_call(("9", "Bash", {"command": "ls"})), _answer("9", "f")], 6
    ):
        reader.feed(position, message, entry)
    assert reader.work().commands == (*_WORK.commands, CommandRun(position=6, command="ls"))


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


def test_an_agent_with_tools_that_talks_about_blocks_changes_nothing() -> None:
    block = "a.py\n```\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n```"
    steps = [
        _ask("How?"),
        _call(("1", "Bash", {"command": "ls"})),
        _answer("1", "a.py"),
        _say(block),
        _ask("Ok"),
    ]
    assert _read(steps).work().changes == ()


_WORDS = st.sampled_from(
    [
        "Edit",
        "Write",
        "Bash",
        "apply_patch",
        "TodoWrite",
        "TaskUpdate",
        "str_replace_editor",
        "",
        "\ud800",
        "*** Begin Patch\n",
        "file_path",
        "content",
        "old_string",
        "new_string",
        "edits",
        "command",
        "diff",
        "operation",
        "todos",
        "status",
        "<<<<<<< SEARCH\n=======\n",
        "--- a\n+++ b\n@@ -1 +1 @@\n",
        "{",
        "     1→x",
        "<system-reminder>",
        "/f",
        "Exit code 1",
    ]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(_WORDS, _VALUES | st.dictionaries(_WORDS, _WORDS), _WORDS, st.booleans()), max_size=6)
)
def test_no_call_makes_it_raise(calls: list[tuple[str, object, str, bool]]) -> None:
    reader = SessionReader()
    for at, (tool, given_, result, is_raw) in enumerate(calls):
        arguments = str(given_) if is_raw else json.dumps(given_)
        entry = TranscriptEntry("assistant", result, ((tool, arguments),), 0)
        reader.feed(2 * at, _message("assistant", (Call(str(at), tool),)), entry)
        reader.feed(2 * at + 1, *_answer(str(at), result))
    assert reader.weight_bytes >= 0
    reader.work()
