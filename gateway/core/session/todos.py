"""The to-do list of a session: written whole by most agents, task by task by Claude Code."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from gateway.core.session.edits import normalize_tool
from gateway.core.session.tool_arguments import iter_strings, parse_arguments
from gateway.core.session.work import OpenTodo

_Todos = tuple[OpenTodo, ...]

_LONGEST_TEXT_CHARS: Final = 300
_MOST_TODOS: Final = 100
_CREATED: Final = re.compile(r"Task #?([\w-]{1,40}) created")
# Of the status of an item, in small letters with underscores. An empty one is that of a new task.
_CLOSED: Final = frozenset(
    {"completed", "complete", "done", "cancelled", "canceled", "deleted", "skipped", "closed"}
)
_IN_PROGRESS: Final = frozenset({"in_progress", "active", "doing", "started", "running"})
_LIST_TOOLS: Final = frozenset({"update_plan", "checklist", "update_checklist", "write_plan"})
_TEXT_KEYS: Final = ("content", "step", "title", "subject", "task", "text", "description")
_CHECKBOX: Final = re.compile(r"^[ \t]{0,20}(?:[-*+][ \t]{1,4})?\[([ xX~-])\][ \t]{1,4}(\S.*)$", re.MULTILINE)
# `[-]` and `[~]`: Roo marks what is being worked on.
_MARKS: Final = {"x": "done", "X": "done", "-": "in_progress", "~": "in_progress"}


def is_todo_call(tool: str) -> bool:
    """By its name. update_plan is Codex's; modes of planning have a text and no list."""
    name = normalize_tool(tool)
    return "todo" in name or name in _LIST_TOOLS or name in ("task_create", "task_update")


def follow_todos(todos: _Todos, tool: str, arguments: str, result: str) -> _Todos:
    """What is open after a call that was done. Calls of other tools change nothing."""
    value = parse_arguments(arguments) if is_todo_call(tool) else None
    if not isinstance(value, dict):
        return todos
    name = normalize_tool(tool)
    if name == "task_create":
        created = _CREATED.search(result[:200])
        if created is None:
            return todos
        made = [replace(each, task=created.group(1)) for each in _list_open([(value.get("subject"), "")])]
        return (*(todo for todo in todos if todo.task), *made)[:_MOST_TODOS]
    if name == "task_update":
        return tuple(each for todo in todos for each in _update(todo, value))
    found = _find_list(value)
    return todos if found is None else found


def _update(todo: OpenTodo, fields: Mapping[str, object]) -> _Todos:
    """The task, if it is this one, as it is now. Nothing where it is closed."""
    if not todo.task or todo.task != str(fields.get("taskId")):
        return (todo,)
    subject, status = fields.get("subject"), fields.get("status")
    known = "in_progress" if todo.is_in_progress else ""
    text = subject if isinstance(subject, str) else todo.text
    now = _list_open([(text, status if isinstance(status, str) else known)])
    return tuple(replace(each, task=todo.task) for each in now)


def _find_list(fields: Mapping[str, object]) -> _Todos | None:
    """None if the call holds no list, which is another thing than an empty one."""
    for items in fields.values():
        if not isinstance(items, list):
            continue
        found = [item for item in items if isinstance(item, dict) and isinstance(item.get("status"), str)]
        if found or not items:
            return _list_open((_find_text(item), item["status"]) for item in found)
    boxes = [box for text in iter_strings(fields) if "[" in text for box in _CHECKBOX.findall(text)]
    return _list_open((text, _MARKS.get(mark, "")) for mark, text in boxes) if boxes else None


def _find_text(item: Mapping[str, object]) -> str | None:
    return next((text for key in _TEXT_KEYS if isinstance(text := item.get(key), str) and text.strip()), None)


def _list_open(items: Iterable[tuple[object, str]]) -> _Todos:
    """Of texts with their status."""
    todos: list[OpenTodo] = []
    for text, status in items:
        state = status.strip().casefold().replace("-", "_").replace(" ", "_")
        if isinstance(text, str) and state not in _CLOSED and len(todos) < _MOST_TODOS:
            shown = text.strip()[:_LONGEST_TEXT_CHARS]
            todos.append(OpenTodo(text=shown, is_in_progress=state in _IN_PROGRESS))
    return tuple(todos)
