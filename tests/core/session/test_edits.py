import json

import pytest

from gateway.core.session.edits import (
    ApplyPatch,
    ChangeNotebook,
    FileAction,
    InsertLines,
    ReadFile,
    ReplaceTexts,
    WriteFile,
    find_file_actions,
    normalize_tool,
)
from gateway.core.session.patches import Replacement

_AB = (Replacement("a", "b"),)
_BLOCK = "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n"
_PATCH = "*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End Patch"
_DIFF = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        # Claude Code
        ("Edit", {"file_path": "/f", "old_string": "a", "new_string": "b"}, ReplaceTexts("/f", _AB)),
        (
            "Edit",
            {"file_path": "/f", "old_string": "a", "new_string": "b", "replace_all": True},
            ReplaceTexts("/f", (Replacement("a", "b", is_everywhere=True),)),
        ),
        (
            "MultiEdit",
            {"file_path": "/f", "edits": [{"old_string": "a", "new_string": "b"}] * 2},
            ReplaceTexts("/f", _AB * 2),
        ),
        ("Write", {"file_path": "/f", "content": "x"}, WriteFile("/f", "x")),
        ("Edit", {"file_path": "/f", "old_string": "", "new_string": "x"}, WriteFile("/f", "x")),
        ("NotebookEdit", {"notebook_path": "/f", "new_source": "x"}, ChangeNotebook("/f")),
        ("Read", {"file_path": "/f"}, ReadFile("/f", is_part=False)),
        ("Read", {"file_path": "/f", "offset": 3}, ReadFile("/f", is_part=True)),
        # Anthropic's text editor, OpenHands, goose
        (
            "str_replace_based_edit_tool",
            {"command": "str_replace", "path": "/f", "old_str": "a", "new_str": "b"},
            ReplaceTexts("/f", _AB),
        ),
        (
            "str_replace_editor",
            {"command": "str_replace", "path": "/f", "old_str": "a"},
            ReplaceTexts("/f", (Replacement("a", ""),)),
        ),
        ("str_replace_editor", {"command": "create", "path": "/f", "file_text": "x"}, WriteFile("/f", "x")),
        (
            "developer__text_editor",
            {"command": "write", "path": "/f", "file_text": "x"},
            WriteFile("/f", "x"),
        ),
        (
            "str_replace_editor",
            {"command": "insert", "path": "/f", "insert_line": 3, "new_str": "x"},
            InsertLines("/f", "x", 3),
        ),
        ("str_replace_editor", {"command": "view", "path": "/f"}, ReadFile("/f", is_part=False)),
        # opencode, Continue, Qwen Code, Gemini CLI, pi
        ("edit", {"filePath": "f", "oldString": "a", "newString": "b"}, ReplaceTexts("f", _AB)),
        ("write", {"filePath": "f", "content": "x"}, WriteFile("f", "x")),
        ("Write", {"filepath": "f", "content": "x"}, WriteFile("f", "x")),
        ("replace", {"file_path": "f", "old_string": "a", "new_string": "b"}, ReplaceTexts("f", _AB)),
        (
            "replace",
            {"file_path": "f", "old_string": "a", "new_string": "b", "expected_replacements": 2},
            ReplaceTexts("f", (Replacement("a", "b", is_everywhere=True),)),
        ),
        ("write_file", {"file_path": "f", "content": "x"}, WriteFile("f", "x")),
        ("edit", {"path": "f", "oldText": "a", "newText": "b"}, ReplaceTexts("f", _AB)),
        # Cline, Roo
        (
            "replace_in_file",
            {"path": "f", "diff": _BLOCK},
            ReplaceTexts("f", (Replacement("a\n", "b\n"),), True),
        ),
        ("apply_diff", {"path": "f", "diff": _BLOCK}, ReplaceTexts("f", (Replacement("a\n", "b\n"),), True)),
        ("write_to_file", {"path": "f", "content": "x"}, WriteFile("f", "x")),
        ("editor", {"path": "f", "old_text": "a", "new_text": "b"}, ReplaceTexts("f", _AB)),
        ("editor", {"path": "f", "old_text": None, "new_text": "b"}, WriteFile("f", "b")),
        ("editor", {"path": "f", "new_text": "b", "insert_line": 4}, InsertLines("f", "b", 3)),
        # SWE-agent
        ("edit", {"search": "a", "replace": "b"}, ReplaceTexts(None, _AB)),
        ("insert", {"text": "x"}, InsertLines(None, "x", None)),
        ("create", {"filename": "f"}, WriteFile("f", None)),
        ("mcp__fs__write_file", {"path": "f", "content": "x"}, WriteFile("f", "x")),
    ],
)
def test_what_a_call_would_do(tool: str, arguments: dict[str, object], expected: FileAction) -> None:
    assert find_file_actions(tool, json.dumps(arguments)) == (expected,)


@pytest.mark.parametrize(
    "arguments",
    [
        _PATCH,
        _DIFF,
        json.dumps({"input": _PATCH}),
        json.dumps({"patchText": _PATCH}),
        json.dumps({"patch": _DIFF}),
        json.dumps({"path": "f", "diff": _DIFF}),
        json.dumps({"operation": {"type": "update_file", "path": "f", "diff": "@@\n-a\n+b"}}),
    ],
)
def test_patches_in_all_places(arguments: str) -> None:
    ((_, files),) = [
        (action, action.files)
        for action in find_file_actions("apply_patch", arguments)
        if isinstance(action, ApplyPatch)
    ]
    assert [(file.path, file.additions, file.deletions) for file in files] == [("f", 1, 1)]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("update_document", {"id": "1", "content": "x"}),
        ("get_weather", {"city": "x"}),
        ("Grep", {"pattern": "x", "path": "/f"}),
        ("create_issue", {"title": "x", "content": "y"}),
        ("write", {"content": "x"}),
        ("Edit", {"file_path": "/f\n", "old_string": "a"}),
        ("todo_write", {"todos": []}),
    ],
)
def test_other_calls_do_nothing_to_files(tool: str, arguments: dict[str, object]) -> None:
    assert find_file_actions(tool, json.dumps(arguments)) == ()


def test_several_edits_may_have_files_of_their_own() -> None:
    edits = [{"path": "f", "oldText": "a", "newText": "b"}, {"path": "g", "oldText": "a", "newText": "b"}]
    assert find_file_actions("edit", json.dumps({"edits": edits})) == (
        ReplaceTexts("f", _AB),
        ReplaceTexts("g", _AB),
    )


def test_arguments_that_are_cut_off_do_nothing() -> None:
    assert find_file_actions("Edit", '{"file_path": "/f", "old_str') == ()


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("mcp__fs__WriteFile", "write_file"),
        ("container.exec", "exec"),
        ("Bash", "bash"),
        ("run-it", "run_it"),
    ],
)
def test_names_are_compared_without_servers_and_case(name: str, normal: str) -> None:
    assert normalize_tool(name) == normal
