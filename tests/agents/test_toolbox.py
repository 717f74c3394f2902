"""Which tools of a request can show a file, in each API."""

import json

import pytest

from tests.agents.toolbox import find_ending, find_names, find_tools

_SHELL = {
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "is_background": {"type": "boolean"},
        "description": {"type": "string"},
    },
    "required": ["command", "is_background", "description"],
}
_READER = {"type": "object", "properties": {"filePath": {"type": "string"}, "limit": {"type": "integer"}}}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "bash", "parameters": _SHELL}},
        {"type": "function", "name": "bash", "parameters": _SHELL},
        {"name": "bash", "input_schema": _SHELL},
    ],
    ids=["chat", "responses", "messages"],
)
def test_a_shell_is_found_in_each_api_and_called_with_all_it_requires(tool: object) -> None:
    (shell,) = find_tools({"tools": [tool]})
    call = shell.read("call_1", "/notes/a.txt")
    wanted = {"command": "cat /notes/a.txt", "is_background": False, "description": "Read notes"}
    assert (call.id, call.name, json.loads(call.arguments)) == ("call_1", "bash", wanted)


def test_tools_are_named_whatever_they_do() -> None:
    chat = {"type": "function", "function": {"name": "search", "parameters": {}}}
    assert find_names({"tools": [chat, {"name": "read", "input_schema": _READER}]}) == ("search", "read")
    assert find_names({}) == ()


def test_a_reader_gets_the_path_alone() -> None:
    (reader,) = find_tools({"tools": [{"name": "read", "input_schema": _READER}]})
    assert json.loads(reader.read("call_1", "/notes/a.txt").arguments) == {"filePath": "/notes/a.txt"}


_FILE = {"type": "object", "properties": {"path": {"type": "string"}}}


@pytest.mark.parametrize(
    ("name", "argument", "items", "value"),
    [
        ("read_files", "files", _FILE, [{"path": "/notes/a.txt"}]),
        ("run_commands", "commands", {"type": "string"}, ["cat /notes/a.txt"]),
    ],
)
def test_a_tool_that_takes_a_list_gets_one(name: str, argument: str, items: object, value: object) -> None:
    schema = {"type": "object", "properties": {argument: {"type": "array", "items": items}}}
    (tool,) = find_tools({"tools": [{"name": name, "input_schema": schema}]})
    assert json.loads(tool.read("call_1", "/notes/a.txt").arguments) == {argument: value}


_AGENT = {"type": "object", "properties": {"prompt": {"type": "string"}, "command": {"type": "string"}}}


@pytest.mark.parametrize(
    "tools",
    [
        None,
        [],
        [{"type": "web_search"}],
        [{"name": "write", "input_schema": _READER}],
        [{"name": "task", "input_schema": _AGENT}],
        ["bash"],
    ],
)
def test_a_tool_that_cannot_show_a_file_is_not_called(tools: object) -> None:
    assert find_tools({"tools": tools}) == ()


@pytest.mark.parametrize(
    ("name", "said"), [("final_answer", {"answer": "Done."}), ("complete", {}), ("read", None)]
)
def test_the_tool_that_ends_a_turn_is_called_with_the_last_words(
    name: str, said: dict[str, str] | None
) -> None:
    call = find_ending({"tools": [{"name": name, "input_schema": _READER}]}, "call_end_0", "Done.")
    assert (None if call is None else json.loads(call.arguments)) == said
