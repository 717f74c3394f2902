import json

import pytest

from gateway.core.session.outcomes import find_exit_code, is_done, says_created, was_run


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ("Exit code 1\nFAIL", 1),  # Claude Code
        ("ok\nExit code 1 was expected, says the test", None),
        ("Exit code: 127\nWall time: 0.1 seconds\nOutput:\nno such command", 127),  # Codex
        ("Chunk ID: a1\nWall time: 0.05 seconds\nProcess exited with code 2\nOutput:\n", 2),
        ("Chunk ID: a1\nWall time: 0.05 seconds\nProcess running with session ID 7\nOutput:\n", None),
        (json.dumps({"output": "Exit code: 5", "metadata": {"exit_code": 0, "duration_seconds": 0.1}}), 0),
        (json.dumps({"stdout": "", "exitCode": 3}), 3),
        ('{"exit_code": true}', None),
        ('{"exit": broken', None),
        ("out\n[Command finished with exit code 0]", 0),  # OpenHands
        ("out\n\nCommand exited with code 2", 2),  # pi
        (
            "Command: ls\nDirectory: (root)\nOutput: Exit Code: 7\nError: (none)\nExit Code: 0\nSignal: 0\n"
            "Background PIDs: (none)\nProcess Group PGID: 4242",
            0,
        ),  # Qwen Code, Gemini CLI
        ("Command: ls\nOutput: x\nExit Code: (none)\nSignal: 15\n", None),
        ("Command executed in terminal within working directory '/a'. Exit code: 1\nOutput:\n", 1),  # Roo
        ("<returncode>1</returncode>\n<output>\nx</output>", 1),  # mini-swe-agent
        ("hello", None),
        ("", None),
    ],
)
def test_the_code_is_what_the_agent_says_and_not_what_the_command_printed(
    result: str, code: int | None
) -> None:
    assert find_exit_code(result) == code


@pytest.mark.parametrize(
    "result",
    [
        "The file /a.py has been updated successfully.",
        "The file /a.py has been updated. Here's the result of running `cat -n`:\n 1\traise Error",
        "File created successfully at: /a.py",
        "Successfully replaced text in a.py. Changed 21 characters to 30 characters.",
        "Replaced 1 occurrences. Please review the changes and make sure they are correct",
        "Success. Updated the following files:\nM a.py",
        '{"output":"Success. Updated the following files:\\nM a.py\\n","metadata":{"exit_code":0}}',
        "Applied 2 edits to /a.py:",
        "[File: /a.py (3 lines total)]\r\n1:x",
        "Wrote 3 lines to a.py",
        "",
    ],
)
def test_an_edit_counts_if_its_result_says_so_or_says_nothing(result: str) -> None:
    assert is_done(result, is_error=False)
    assert not is_done(result, is_error=True)


@pytest.mark.parametrize(
    "result",
    [
        "<tool_use_error>String to replace not found in file.\nString: a</tool_use_error>",
        "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>",
        "The user doesn't want to proceed with this tool use. The tool use was rejected",
        "Ran into [Errno 2] No such file or directory: '/a.py' while trying to write to /a.py",
        "No replacement was performed, old_str `a` did not appear verbatim in /a.py.",
        "Error: oldString not found in content",
        "Could not find the exact text in a.py. The old text must match exactly",
        "Found 2 matches of the string to replace, but replace_all is false.",
        "apply_patch verification failed: Failed to find expected lines in a.py",
        '{"output":"patch failed","metadata":{"exit_code":1}}',
        "Failed to edit, could not find the string to replace.",
        "[Old tool result content cleared]",
    ],
)
def test_an_edit_that_failed_or_whose_result_is_gone_does_not_count(result: str) -> None:
    assert not is_done(result, is_error=False)


def test_only_some_writes_say_that_the_file_is_new() -> None:
    assert says_created("File created successfully at: /a.py")
    assert says_created("Successfully created and wrote to new file: /a.py.")
    assert not says_created("Successfully wrote 12 bytes to a.py")


def test_a_command_that_the_user_refused_was_not_run() -> None:
    assert not was_run("The user doesn't want to proceed with this tool use.")
    assert was_run("Exit code 1\n")
