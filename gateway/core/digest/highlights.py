"""What of a history is worth quoting where it cannot be retold: requests, plan, files, commands, last words.

Knows messages and the arguments of calls; what there is room for is the digest's business.
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

# More than the last few texts are the way there, not where it led.
LAST_TEXTS: Final = 8
# A longer command is a script.
_COMMAND_CHARS: Final = 300
# Tools that change files have these in their names. `command` names it where one tool does both.
_CHANGING: Final = ("edit", "write", "create", "patch", "replace", "insert", "delete", "move", "rename")
_ASKING: Final = {"user": "", "system": "[system] ", "developer": "[developer] "}


@dataclass(frozen=True, slots=True)
class Highlights:
    """Texts in the order they were said, files and commands in that of their last mention.

    todos, plan: the latest, None where nothing was said of it. files: were they changed?
    """

    asked: list[str]
    todos: list[str] | None
    plan: str | None
    files: dict[str, bool]
    commands: list[str]
    said: list[str]


@dataclass(frozen=True, slots=True)
class _Call:
    """result: only where it is beyond doubt this call's."""

    name: str
    value: object
    result: str


def find_highlights(messages: Sequence[TranscriptEntry]) -> Highlights:
    spoken = list_entries(messages)
    calls = list(_iter_calls(spoken))
    todos, plan = _pick_plans(calls)
    said = (entry.text for entry in reversed(spoken) if entry.role == "assistant" and entry.text.strip())
    return Highlights(
        asked=[text for entry in spoken if (text := _read_asked(entry))],
        todos=todos,
        plan=plan,
        files=_pick_files(calls),
        commands=_pick_commands(calls),
        said=list(islice(said, LAST_TEXTS))[::-1],
    )


def without_repeats(texts: Iterable[str]) -> list[str]:
    """The last of each."""
    kept: dict[str, None] = {}
    for text in texts:
        kept.pop(text, None)
        kept[text] = None
    return list(kept)


def _read_asked(entry: TranscriptEntry) -> str:
    """What a user said, or whoever may say what to do; empty for all others."""
    if entry.is_result or entry.role not in _ASKING:
        return ""
    media = f"[{entry.media} attachments left out]" if entry.media else ""
    text = "\n".join(filter(None, (entry.text.strip(), media)))
    return _ASKING[entry.role] + text if text else ""


def _iter_calls(spoken: Sequence[TranscriptEntry]) -> Iterator[_Call]:
    for position, entry in enumerate(spoken):
        following = spoken[position + 1] if len(entry.calls) == 1 and position + 1 < len(spoken) else None
        result = following.text if following and following.is_result else ""
        for name, arguments in entry.calls:
            value = parse_arguments(arguments)
            yield _Call(name, arguments if value is None else value, result)


def _pick_plans(calls: Sequence[_Call]) -> tuple[list[str] | None, str | None]:
    """The to-do list, open items first, and the plan that is a text."""
    todos: list[str] | None = None
    plan: str | None = None
    for call in calls:
        if not is_todo_tool(call.name):
            continue
        texts = [text for text in iter_strings(call.value) if text.strip()]
        # A call without arguments reads the list: its result is what it says.
        listed = find_todos(call.value) if texts else find_todos(parse_arguments(call.result) or call.result)
        if listed:
            lines = [f"[{' ' if todo.is_open else 'x'}] {' '.join(todo.text.split())}" for todo in listed]
            todos = sorted(lines, key=lambda line: line.startswith("[x]"))
        elif texts:
            plan = max(texts, key=len)
        elif call.value:
            # A list that was emptied.
            todos = []
    return todos, plan


def _pick_files(calls: Sequence[_Call]) -> dict[str, bool]:
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


def _pick_commands(calls: Sequence[_Call]) -> list[str]:
    commands = [" ".join(command.split()) for call in calls for command in find_commands(call.value)]
    return without_repeats(
        command if len(command) <= _COMMAND_CHARS else f"{command[: _COMMAND_CHARS - 1]}…"
        for command in commands
    )
