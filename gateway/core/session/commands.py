"""Which commands a tool call runs, and which patches it passes to them."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gateway.core.session.edits import find_patch, normalize_tool
from gateway.core.session.tool_arguments import parse_arguments
from gateway.core.session.work import FileChange

_TOOLS: Final = """
    bash shell sh zsh terminal exec exec_command execute run cmd powershell run_shell_command execute_command
    run_command run_commands execute_bash shell_command run_in_terminal run_terminal_cmd run_terminal_command
    local_shell container_exec execute_shell execute_shell_command bash_command run_bash developer_shell
    cmd_run
"""
_NAMES: Final = frozenset(_TOOLS.split())
_FIELDS: Final = ("command", "cmd", "commands", "script", "CommandLine")
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "/bin/sh", "/bin/bash", "/bin/zsh", "powershell"})
# Commands that leave files as they are, if nothing is written to a file.
_READERS: Final = """
    ls cat head tail wc grep rg find pwd which echo file stat du tree diff ps env date whoami cd sleep true
    test type jq sort uniq cut df nl ag fd less more printenv uname id lsof
"""
_READING: Final = frozenset(_READERS.split())
_READING_GIT: Final = frozenset(
    {"status", "diff", "log", "show", "branch", "blame", "remote", "rev-parse", "ls-files", "config", "grep"}
)
_SEPARATORS: Final = re.compile(r"&&|\|\||[;|\n]")
# A patch that a shell passes to a program: `apply_patch <<'EOF' … EOF`, `git apply <<EOF`, `patch -p1 <<EOF`.
_HEREDOC: Final = re.compile(
    r"(?:^|(?<=[;&|\n])[ \t]{0,20})(?:apply_patch|applypatch|git apply|patch)\b[^\n<]{0,200}"
    r"<<-?[ \t]{0,20}(?P<quote>['\"]?)(?P<word>[A-Za-z_][\w-]{0,50})(?P=quote)[^\n]{0,200}\n"
)
_OTHER_SIGNS: Final = re.compile(r"[^a-z0-9]+")
_MOST_HEREDOCS: Final = 20
_DIRECT: Final = ("apply_patch *** Begin", "applypatch *** Begin")
# What may stand before it, and does nothing.
_CHANGE_DIRECTORY: Final = re.compile(r"cd [^\n;&|]{1,1000}")
_TO_FILE: Final = re.compile(r"(?<![0-9&>])>{1,2}\s*(?!/dev/null|&)\S|-exec\b|-delete\b|\btee\b|-i\b")


def list_commands(tool: str, arguments: str) -> tuple[str, ...]:
    """The commands that the call runs, in order; empty if it is no call of a shell."""
    # By its name: an editor with a field `command` is none.
    if normalize_tool(tool) not in _NAMES and _OTHER_SIGNS.sub("_", tool.lower()) not in _NAMES:
        return ()
    value = parse_arguments(arguments)
    if isinstance(value, dict):
        action = value.get("action")  # local_shell of the Responses API
        fields = action if isinstance(action, dict) else value
        found = [each for name in _FIELDS for each in _list_named(name, fields.get(name))]
        return tuple(command for command in found if command.strip())
    return (arguments,) if isinstance(value, str) or (value is None and arguments.strip()) else ()


def _list_named(name: str, value: object) -> list[str]:
    """A list is one command in words, unless the name of the field is plural."""
    if not isinstance(value, list):
        return [value] if isinstance(value, str) else []
    words = [word for word in value if isinstance(word, str)]
    if name == "commands":
        return words
    if len(words) > 2 and words[0] in _SHELLS and words[1].startswith("-"):
        words = words[2:]
    return [" ".join(words)]


def list_patches(command: str) -> tuple[FileChange, ...]:
    """Files of the patches that a command passes to a program that applies them."""
    if command.startswith(_DIRECT):
        return find_patch(command)
    return tuple(file for heredoc in _iter_heredocs(command) for file in find_patch(heredoc.text))


def is_only_patch(command: str) -> bool:
    """Whether a command does nothing but apply patches."""
    if command.startswith(_DIRECT):
        return True
    rest, at = list[str](), 0
    for heredoc in _iter_heredocs(command):
        rest.append(command[at : heredoc.start])
        at = heredoc.end
    others = [part for text in (*rest, command[at:]) for part in _SEPARATORS.split(text)]
    return bool(rest) and all(
        not part.strip(" &") or _CHANGE_DIRECTORY.match(part.strip()) for part in others
    )


class _Heredoc(NamedTuple):
    start: int
    end: int
    text: str


def _iter_heredocs(command: str) -> Iterator[_Heredoc]:
    at = 0
    for _ in range(_MOST_HEREDOCS if "<<" in command else 0):
        opening = _HEREDOC.search(command, at)
        if opening is None:
            return
        # The newline before the text may be the one before the last line.
        closing = re.compile(rf"\n{re.escape(opening.group('word'))}[ \t]{{0,20}}(?=\n|\)|\Z)")
        found = closing.search(command, opening.end() - 1)
        if found is None:
            return
        yield _Heredoc(opening.start(), found.end(), command[opening.end() : found.start() + 1])
        at = found.end()


def may_change_files(command: str) -> bool:
    """False only for commands that are known to read."""
    if _TO_FILE.search(command):
        return True
    for part in _SEPARATORS.split(command):
        words = part.split()
        while words and "=" in words[0]:
            words = words[1:]
        if not words or words[0] in _READING:
            continue
        if words[0] == "git" and len(words) > 1 and words[1] in _READING_GIT:
            continue
        return True
    return False
