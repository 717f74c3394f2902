"""The to-do list of a session: written whole by most agents, task by task by Claude Code."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.core.session.edits import normalize_tool
from gateway.core.session.tool_arguments import find_todos, parse_arguments
from gateway.core.session.work import OpenTodo

_LONGEST_TEXT_CHARS: Final = 300
_MOST_TODOS: Final = 100
_CREATED: Final = re.compile(r"Task #?([\w-]{1,40}) created")
# Of the status of an item, in small letters with underscores.
_CLOSED: Final = frozenset(
    {"completed", "complete", "done", "cancelled", "canceled", "deleted", "skipped", "closed"}
)
_IN_PROGRESS: Final = frozenset({"in_progress", "active", "doing", "started", "running"})
_LIST_TOOLS: Final = frozenset({"update_plan", "checklist", "update_checklist", "write_plan"})
_TEXT_KEYS: Final = ("content", "step", "title", "subject", "task", "text", "description")
# `[-]` and `[~]`: Roo marks what is being worked on.
_BEING_DONE: Final = re.compile(r"^[ \t]{0,20}(?:[-*+][ \t]{1,4})?\[[-~]\][ \t]{1,4}(\S.*)$", re.MULTILINE)


@dataclass(slots=True)
class TodoBoard:
    """open: of the newest list."""

    open: tuple[OpenTodo, ...] = ()
    # Tasks that were created one by one, by their ids.
    _tasks: dict[str, OpenTodo] = field(default_factory=dict)

    @property
    def has_tasks(self) -> bool:
        return bool(self._tasks)

    def read(self, tool: str, arguments: str, result: str) -> None:
        """A call that was done. Calls of other tools change nothing."""
        name, value = normalize_tool(tool), parse_arguments(arguments)
        if not is_todo_call(tool) or not isinstance(value, dict):
            return
        if name == "task_create":
            self._create(value, result)
        elif name == "task_update":
            self._update(value)
        elif (found := _find_list(value)) is not None:
            self.open = found

    def _create(self, fields: Mapping[str, object], result: str) -> None:
        created, subject = _CREATED.search(result[:200]), fields.get("subject")
        if created and isinstance(subject, str) and len(self._tasks) < _MOST_TODOS:
            self._tasks[created.group(1)] = _make_todo(subject, "pending")
            self.open = tuple(self._tasks.values())

    def _update(self, fields: Mapping[str, object]) -> None:
        identity, status = str(fields.get("taskId")), fields.get("status")
        task = self._tasks.pop(identity, None)
        if task is None:
            return
        subject = fields.get("subject")
        text = subject if isinstance(subject, str) else task.text
        state = _normalize(status) if isinstance(status, str) else None
        if state is None or state not in _CLOSED:
            is_in_progress = task.is_in_progress if state is None else state in _IN_PROGRESS
            self._tasks[identity] = OpenTodo(text=text[:_LONGEST_TEXT_CHARS], is_in_progress=is_in_progress)
        self.open = tuple(self._tasks.values())


def is_todo_call(tool: str) -> bool:
    """By its name. update_plan is Codex's; modes of planning have a text and no list."""
    name = normalize_tool(tool)
    return "todo" in name or name in _LIST_TOOLS or name in ("task_create", "task_update")


def _find_list(value: Mapping[str, object]) -> tuple[OpenTodo, ...] | None:
    """None if the call holds no list, which is another thing than an empty one."""
    lists = [items for items in value.values() if isinstance(items, list)]
    for items in lists:
        found = [item for item in items if isinstance(item, dict) and isinstance(item.get("status"), str)]
        if found or not items:
            open_items = [item for item in found if _normalize(item["status"]) not in _CLOSED]
            todos = [_make_todo(text, item["status"]) for item in open_items if (text := _find_text(item))]
            return tuple(todos[:_MOST_TODOS])
    boxes = find_todos(value)
    if not boxes:
        return None
    doing = {
        text.strip()
        for field in value.values()
        if isinstance(field, str)
        for text in _BEING_DONE.findall(field)
    }
    return tuple(
        OpenTodo(text=todo.text[:_LONGEST_TEXT_CHARS], is_in_progress=todo.text in doing)
        for todo in [each for each in boxes if each.is_open][:_MOST_TODOS]
    )


def _find_text(item: Mapping[str, object]) -> str | None:
    return next((text for key in _TEXT_KEYS if isinstance(text := item.get(key), str) and text.strip()), None)


def _make_todo(text: str, status: str) -> OpenTodo:
    return OpenTodo(
        text=text.strip()[:_LONGEST_TEXT_CHARS], is_in_progress=_normalize(status) in _IN_PROGRESS
    )


def _normalize(status: str) -> str:
    return status.strip().casefold().replace("-", "_").replace(" ", "_")
