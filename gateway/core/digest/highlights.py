"""What a digest quotes of a history: requests, plan, files, commands and the last texts of the model.

Knows messages and the arguments of calls; `render` decides what there is room for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gateway.core.digest.tool_arguments import (
    find_commands,
    find_paths,
    find_todos,
    is_todo_tool,
    iter_strings,
    parse_arguments,
)
from gateway.core.history.transcript import TranscriptEntry, list_entries

# Older texts of the model tell how the work got there, not where it stands.
LAST_TEXTS: Final = 8
# A longer command is a script.
_COMMAND_CHARS: Final = 300
# Names of tools that change files contain one of these; a tool that reads and writes has it in `command`.
_CHANGING: Final = ("edit", "write", "create", "patch", "replace", "insert", "delete", "move", "rename")
_ROLE_LABELS: Final = {"user": "", "system": "[system] ", "developer": "[developer] "}


@dataclass(frozen=True, slots=True)
class Highlights:
    """Texts in their order in the history, files and commands in the order of their last mention."""

    # What users asked.
    asked: list[str]
    # The latest list and plan; None if there was none.
    todos: list[str] | None
    plan: str | None
    # Paths, and whether the file was changed.
    files: dict[str, bool]
    commands: list[str]
    # The last texts of the model.
    said: list[str]


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    # The parsed arguments, or their text.
    value: object
    # Empty if it is unclear which result belongs to this call.
    result: str


def find_highlights(messages: Sequence[TranscriptEntry]) -> Highlights:
    entries = list_entries(messages)
    calls = list(_iter_calls(entries))
    todos, plan = _find_plans(calls)
    said = (entry.text for entry in reversed(entries) if entry.role == "assistant" and entry.text.strip())
    return Highlights(
        asked=[text for entry in entries if (text := _find_asked(entry))],
        todos=todos,
        plan=plan,
        files=_find_files(calls),
        commands=_find_commands(calls),
        said=list(islice(said, LAST_TEXTS))[::-1],
    )


def without_repeats(texts: Iterable[str]) -> list[str]:
    """Each text once, at its last position."""
    kept: dict[str, None] = {}
    for text in texts:
        kept.pop(text, None)
        kept[text] = None
    return list(kept)


def _find_asked(entry: TranscriptEntry) -> str:
    """The text of a user or of an instruction; empty for any other entry."""
    if entry.is_result or entry.role not in _ROLE_LABELS:
        return ""
    media = f"[{entry.media} attachments left out]" if entry.media else ""
    text = "\n".join(filter(None, (entry.text.strip(), media)))
    return _ROLE_LABELS[entry.role] + text if text else ""


def _iter_calls(entries: Sequence[TranscriptEntry]) -> Iterator[_Call]:
    for position, entry in enumerate(entries):
        following = entries[position + 1] if len(entry.calls) == 1 and position + 1 < len(entries) else None
        result = following.text if following and following.is_result else ""
        for name, arguments in entry.calls:
            value = parse_arguments(arguments)
            yield _Call(name, arguments if value is None else value, result)


def _find_plans(calls: Sequence[_Call]) -> tuple[list[str] | None, str | None]:
    """The latest to-do list, open items first, and the latest plan in the form of a text."""
    todos: list[str] | None = None
    plan: str | None = None
    for call in calls:
        if not is_todo_tool(call.name):
            continue
        texts = [text for text in iter_strings(call.value) if text.strip()]
        # A call without arguments reads the list, which is in its result.
        listed = find_todos(call.value) if texts else find_todos(parse_arguments(call.result) or call.result)
        if listed:
            lines = [f"[{' ' if todo.is_open else 'x'}] {' '.join(todo.text.split())}" for todo in listed]
            todos = sorted(lines, key=lambda line: line.startswith("[x]"))
        elif texts:
            plan = max(texts, key=len)
        elif call.value:
            # The list was emptied.
            todos = []
    return todos, plan


def _find_files(calls: Sequence[_Call]) -> dict[str, bool]:
    files: dict[str, bool] = {}
    for call in calls:
        paths = find_paths(call.value)
        is_changed = bool(paths) and _is_changing(call)
        for path in paths:
            files[path] = files.pop(path, False) or is_changed
    return files


def _is_changing(call: _Call) -> bool:
    command = call.value.get("command") if isinstance(call.value, dict) else None
    is_verb = isinstance(command, str) and len(command.split()) == 1
    verb = str(command) if is_verb else call.name
    return any(word in verb.casefold() for word in _CHANGING)


def _find_commands(calls: Sequence[_Call]) -> list[str]:
    commands = [" ".join(command.split()) for call in calls for command in find_commands(call.value)]
    return without_repeats(
        command if len(command) <= _COMMAND_CHARS else f"{command[: _COMMAND_CHARS - 1]}…"
        for command in commands
    )
