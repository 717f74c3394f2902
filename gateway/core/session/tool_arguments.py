"""Finds files, commands and to-do items in the arguments of a tool call.

Arguments are usually JSON, but that is not guaranteed. Knows the names that agents use for such fields, not
their tools.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# Spelled in any way, such as file_path, filePath or FilePath.
_PATH_KEYS: Final = frozenset(
    {"path", "paths", "file", "files", "filepath", "filepaths", "filename", "notebookpath", "targetfile"}
    | {"absolutepath", "relativepath"}
)
_COMMAND_KEYS: Final = ("command", "cmd", "commands")
_TODO_KEYS: Final = ("content", "step", "title", "subject", "task", "text", "description")
_OPEN: Final = frozenset({"pending", "in_progress", "in-progress", "todo", "open", "not_started", "blocked"})
# A longer value is a text in a field of such a name.
_LONGEST_PATH_CHARS: Final = 300
# The patch format of Codex writes this before each file.
_PATCHED: Final = re.compile(
    r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (\S[^\r\n]{0,299})$", re.MULTILINE
)
_CHECKBOX: Final = re.compile(r"^[ \t]{0,20}(?:[-*+][ \t]{1,4})?\[([ xX~-])\][ \t]{1,4}(\S.*)$", re.MULTILINE)
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "/bin/sh", "/bin/bash", "/bin/zsh", "powershell"})


@dataclass(frozen=True, slots=True)
class Todo:
    text: str
    is_open: bool


def parse_arguments(arguments: str) -> object | None:
    """The parsed value, or None if the arguments are not JSON."""
    try:
        value: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value


def find_paths(value: object) -> tuple[str, ...]:
    """Files in fields with a known name, and files that a patch changes; each once, in order."""
    found = dict.fromkeys(
        path
        for fields in _iter_objects(value)
        for key, field in fields.items()
        if _is_path_key(key)
        for path in _list_texts(field)
        if _is_path(path)
    )
    for text in iter_strings(value):
        if "*** " in text:
            found.update(dict.fromkeys(path.strip() for path in _PATCHED.findall(text)))
    return tuple(found)


def find_commands(value: object) -> tuple[str, ...]:
    """Shell commands, in order. A single word next to a path is an operation of an editor, not a command."""
    found: list[str] = []
    for fields in _iter_objects(value):
        for key in _COMMAND_KEYS:
            commands = _list_commands(key, fields.get(key))
            if len(commands) == 1 and len(commands[0].split()) < 2 and any(map(_is_path_key, fields)):
                continue
            found += commands
    return tuple(command for command in found if command.strip())


def find_todos(value: object) -> tuple[Todo, ...]:
    """The items of a to-do list: objects with a status, or else check boxes in texts."""
    items = tuple(
        Todo(text, status.casefold() in _OPEN)
        for fields in _iter_objects(value)
        if isinstance(status := fields.get("status"), str) and (text := _find_todo_text(fields))
    )
    return items or tuple(todo for text in iter_strings(value) for todo in parse_checkboxes(text))


def parse_checkboxes(text: str) -> tuple[Todo, ...]:
    """Items such as `- [ ] open` and `- [x] done`, with or without the dash."""
    if "[" not in text:
        return ()
    return tuple(Todo(said.strip(), mark not in "xX") for mark, said in _CHECKBOX.findall(text))


def iter_strings(value: object) -> Iterator[str]:
    """Every text in a value, in order, without the names of fields."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(reversed(item.values()))
        elif isinstance(item, list):
            pending.extend(reversed(item))


def _iter_objects(value: object) -> Iterator[dict[str, object]]:
    """Every object in a value, outer objects before inner ones."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(reversed(item.values()))
        elif isinstance(item, list):
            pending.extend(reversed(item))


def _list_texts(value: object) -> list[str]:
    """The text itself, or the texts of a list."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def _is_path_key(key: str) -> bool:
    return key.replace("_", "").casefold() in _PATH_KEYS


def _is_path(text: str) -> bool:
    return bool(text.strip(" ./\\")) and len(text) <= _LONGEST_PATH_CHARS and text.isprintable()


def _list_commands(key: str, value: object) -> list[str]:
    """A list is one command in words, unless the name of the field is plural."""
    words = _list_texts(value)
    if not isinstance(value, list) or key == "commands":
        return words
    if len(words) > 2 and words[0] in _SHELLS and words[1].startswith("-"):
        words = words[2:]
    return [" ".join(words)]


def _find_todo_text(fields: dict[str, object]) -> str | None:
    said = (fields.get(key) for key in _TODO_KEYS)
    return next((text.strip() for text in said if isinstance(text, str) and text.strip()), None)
