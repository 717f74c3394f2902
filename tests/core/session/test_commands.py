import json

import pytest

from gateway.core.session.commands import (
    is_command_tool,
    is_only_patch,
    list_commands,
    list_patches,
    may_change_files,
)

_PATCH = "*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End Patch"


@pytest.mark.parametrize(
    ("tool", "arguments", "commands"),
    [
        ("Bash", {"command": "ls -l", "description": "List"}, ("ls -l",)),
        ("run_shell_command", {"command": "ls", "is_background": False}, ("ls",)),
        ("exec_command", {"cmd": "ls", "workdir": "/"}, ("ls",)),
        ("shell", {"command": ["bash", "-lc", "ls -l"]}, ("ls -l",)),
        ("shell", {"command": ["ls", "-l"]}, ("ls -l",)),
        ("run_commands", {"commands": ["ls", "pwd"]}, ("ls", "pwd")),
        ("local_shell", {"action": {"type": "exec", "command": ["ls"]}}, ("ls",)),
        ("container.exec", {"cmd": ["ls"]}, ("ls",)),
        ("developer__shell", {"command": "ls"}, ("ls",)),
        ("str_replace_editor", {"command": "view", "path": "/f"}, ()),
        ("Task", {"prompt": "run ls"}, ()),
        ("Bash", {"description": "nothing"}, ()),
    ],
)
def test_commands_of_a_call(tool: str, arguments: dict[str, object], commands: tuple[str, ...]) -> None:
    assert list_commands(tool, json.dumps(arguments)) == commands
    assert is_command_tool(tool) or not commands


@pytest.mark.parametrize(
    ("command", "is_only"),
    [
        (f"apply_patch <<'EOF'\n{_PATCH}\nEOF", True),
        (f"apply_patch <<'PATCH'\n{_PATCH}\nPATCH\n", True),
        (f"cd /app && apply_patch <<'EOF'\n{_PATCH}\nEOF\n", True),
        (f"apply_patch {_PATCH}", True),
        (f"apply_patch <<EOF\n{_PATCH}\nEOF\npytest -q", False),
        ("git apply <<'EOF'\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\nEOF", True),
        ("patch -p1 <<'EOF'\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\nEOF", True),
    ],
)
def test_patches_that_a_shell_passes_on(command: str, *, is_only: bool) -> None:
    assert [(file.path, file.additions, file.deletions) for file in list_patches(command)] == [("f", 1, 1)]
    assert is_only_patch(command) == is_only


@pytest.mark.parametrize("command", [f"cat > f <<'EOF'\n{_PATCH}\nEOF", "ls", f"echo '{_PATCH}'"])
def test_a_patch_that_is_not_applied_is_none(command: str) -> None:
    assert list_patches(command) == ()
    assert not is_only_patch(command)


@pytest.mark.parametrize(
    ("command", "may"),
    [
        ("ls -l && cat a | grep b", False),
        ("git status; git diff --stat", False),
        ("LANG=C sort a 2>/dev/null", False),
        ("echo x > f", True),
        ("sed -i s/a/b/ f", True),
        ("find . -name x -delete", True),
        ("git checkout .", True),
        ("make fmt", True),
        ("ls | tee f", True),
    ],
)
def test_which_commands_may_change_files(command: str, *, may: bool) -> None:
    assert may_change_files(command) == may


@pytest.mark.parametrize(
    "hostile",
    ["apply_patch <<EOF\n", "patch ", "git apply <<A <<B\n", "> ", "<<", "; apply_patch <<'", "\n\nEOF"],
)
def test_a_megabyte_of_anything_is_no_patch(hostile: str) -> None:
    command = hostile * (1_000_000 // len(hostile))
    assert list_patches(command) == ()
    assert not is_only_patch(command)
    may_change_files(command)
