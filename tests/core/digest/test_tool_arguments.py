import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.tool_arguments import (
    Todo,
    find_commands,
    find_paths,
    find_todos,
    is_todo_tool,
    iter_strings,
    parse_arguments,
    parse_checkboxes,
)

_PATCH = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n*** Add File: b.md \n*** Move to: c.md\n"
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["path", "file", "command", "commands", "status", "content", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("arguments", ["", "{", "[1,", "\x00", "[" * 100_000, "9" * 5_000])
def test_arguments_that_are_not_json_have_no_value(arguments: str) -> None:
    assert parse_arguments(arguments) is None


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ({"path": "a.py"}, ("a.py",)),
        ({"filePath": "/a b.py", "file_path": "/c"}, ("/a b.py", "/c")),
        ({"files": ["a", "b", "a"]}, ("a", "b")),
        ({"edits": [{"file": "a"}, {"filename": "b"}]}, ("a", "b")),
        ({"path": "."}, ()),
        ({"path": "two\nlines"}, ()),
        ({"file": "x" * 301}, ()),
        ({"path": 7, "url": "u"}, ()),
        (_PATCH, ("src/a.py", "b.md", "c.md")),
        ({"input": _PATCH}, ("src/a.py", "b.md", "c.md")),
        (None, ()),
    ],
)
def test_files_are_found_in_fields_of_many_names(value: Any, paths: tuple[str, ...]) -> None:
    assert find_paths(value) == paths


@pytest.mark.parametrize(
    ("value", "commands"),
    [
        ({"command": "make test"}, ("make test",)),
        ({"cmd": ["bash", "-lc", "ls | wc"]}, ("ls | wc",)),
        ({"command": ["git", "status"]}, ("git status",)),
        ({"commands": ["ls", "pwd"]}, ("ls", "pwd")),
        ({"command": "view", "path": "a.py"}, ()),
        ({"command": "ls", "timeout": 3}, ("ls",)),
        ({"command": " "}, ()),
        ({"command": {"x": 1}}, ()),
    ],
)
def test_commands_are_texts_or_lists_of_words(value: Any, commands: tuple[str, ...]) -> None:
    assert find_commands(value) == commands


@pytest.mark.parametrize(
    ("value", "todos"),
    [
        (
            {"todos": [{"content": "a", "status": "pending"}, {"content": "b", "status": "completed"}]},
            (Todo("a", True), Todo("b", False)),
        ),
        ({"plan": [{"step": "a", "status": "in_progress"}]}, (Todo("a", True),)),
        ({"todos": "[ ] a\n[x] b\n[-] c"}, (Todo("a", True), Todo("b", False), Todo("c", True))),
        ({"todos": [{"status": "pending"}]}, ()),
        ({"todos": []}, ()),
    ],
)
def test_todos_are_objects_with_a_status_or_check_boxes(value: Any, todos: tuple[Todo, ...]) -> None:
    assert find_todos(value) == todos


def test_check_boxes_begin_a_line() -> None:
    text = "Do:\n- [ ] one\n  * [X] two \nnot - [ ] three\n- [ ]\n- [y] four"
    assert parse_checkboxes(text) == (Todo("one", True), Todo("two", False))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("TodoWrite", True), ("update_plan", True), ("ExitPlanMode", True), ("Bash", False)],
)
def test_a_todo_tool_is_recognized_by_its_name(name: str, expected: bool) -> None:
    assert is_todo_tool(name) is expected


def test_texts_come_in_the_order_they_are_written() -> None:
    assert list(iter_strings({"a": ["x", {"b": "y"}], "c": "z", "d": 1})) == ["x", "y", "z"]


@given(_JSON)
def test_any_value_can_be_searched(value: Any) -> None:
    assert parse_arguments(json.dumps(value)) == value
    assert all(isinstance(path, str) for path in find_paths(value))
    assert all(command.strip() for command in find_commands(value))
    assert all(todo.text for todo in find_todos(value))
