"""What the arguments of a tool call say: files, commands, to-do items.

They are JSON most of the time, and nobody promises it. Knows the names that agents use for such things, not
their tools.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# However they are spelled: file_path, filePath, FilePath.
_PATH_KEYS: Final = frozenset(
    {"path", "paths", "file", "files", "filepath", "filepaths", "filename", "notebookpath", "targetfile"}
    | {"absolutepath", "relativepath"}
)
_COMMAND_KEYS: Final = ("command", "cmd", "commands")
_TODO_KEYS: Final = ("content", "step", "title", "subject", "task", "text", "description")
_OPEN: Final = frozenset({"pending", "in_progress", "in-progress", "todo", "open", "not_started", "blocked"})
# Longer ones are texts that happen to stand under such a name.
_LONGEST_PATH: Final = 300
# What the patch format of Codex writes before each file.
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
    """Their value, or None where they are no JSON."""
    try:
        value: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value


def is_todo_tool(name: str) -> bool:
    lowered = name.casefold()
    return "todo" in lowered or "plan" in lowered


def find_paths(value: object) -> tuple[str, ...]:
    """Files under the names that tools use for them, and those that a patch changes; each once, in order."""
    found = dict.fromkeys(
        path
        for fields in _iter_objects(value)
        for key, field in fields.items()
        if _is_path_key(key)
        for path in _texts_of(field)
        if _is_path(path)
    )
    for text in iter_strings(value):
        if "*** " in text:
            found.update(dict.fromkeys(path.strip() for path in _PATCHED.findall(text)))
    return tuple(found)


def find_commands(value: object) -> tuple[str, ...]:
    """Shell commands, in order. A word beside a path is what an editor is told to do, not a command."""
    found: list[str] = []
    for fields in _iter_objects(value):
        for key in _COMMAND_KEYS:
            commands = _read_commands(key, fields.get(key))
            if len(commands) == 1 and len(commands[0].split()) < 2 and any(map(_is_path_key, fields)):
                continue
            found += commands
    return tuple(command for command in found if command.strip())


def find_todos(value: object) -> tuple[Todo, ...]:
    """The items of a to-do list: objects with a status, or check boxes in a text."""
    items = tuple(
        Todo(text, status.casefold() in _OPEN)
        for fields in _iter_objects(value)
        if isinstance(status := fields.get("status"), str) and (text := _read_todo_text(fields))
    )
    return items or tuple(todo for text in iter_strings(value) for todo in parse_checkboxes(text))


def parse_checkboxes(text: str) -> tuple[Todo, ...]:
    """`- [ ] open` and `- [x] done`, with or without the dash."""
    if "[" not in text:
        return ()
    return tuple(Todo(said.strip(), mark not in "xX") for mark, said in _CHECKBOX.findall(text))


def iter_strings(value: object) -> Iterator[str]:
    """Every text in a value, in order, names of fields left out."""
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
    """Every object in a value, the outer before the inner."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(reversed(item.values()))
        elif isinstance(item, list):
            pending.extend(reversed(item))


def _texts_of(value: object) -> list[str]:
    """A text, or the texts of a list."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def _is_path_key(key: str) -> bool:
    return key.replace("_", "").casefold() in _PATH_KEYS


def _is_path(text: str) -> bool:
    return bool(text.strip(" ./\\")) and len(text) <= _LONGEST_PATH and text.isprintable()


def _read_commands(key: str, value: object) -> list[str]:
    """A list is one command, cut into words, unless its name says that they are several."""
    words = _texts_of(value)
    if not isinstance(value, list) or key == "commands":
        return words
    if len(words) > 2 and words[0] in _SHELLS and words[1].startswith("-"):
        words = words[2:]
    return [" ".join(words)]


def _read_todo_text(fields: dict[str, object]) -> str | None:
    said = (fields.get(key) for key in _TODO_KEYS)
    return next((text.strip() for text in said if isinstance(text, str) and text.strip()), None)
