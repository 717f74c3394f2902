"""What the messages of a session did: files changed, commands run, things to do. Values only, and bounded:
the newest of everything.

Nothing is guessed: what cannot be worked out is left out, or its numbers are None.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

ChangeKind = Literal["created", "changed", "deleted", "moved"]

_MOST_FILES: Final = 500
_MOST_COMMANDS: Final = 200
_MOST_TITLES: Final = 200
_MOST_TODOS: Final = 100
_MOST_CHANGES: Final = 2_000
# Characters of each list together. Without changes a session has at most some 100 KB.
_FILES_CHARS: Final = 32_000
_COMMANDS_CHARS: Final = 32_000
_TITLES_CHARS: Final = 16_000
_TODOS_CHARS: Final = 16_000
_CHANGES_CHARS: Final = 1 << 20
_LONGEST_DIFF_CHARS: Final = 1 << 16
_LONGEST_COMMAND_CHARS: Final = 400

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChange:
    """One edit of one file. position: of the message with the call. additions, deletions: lines; None where
    the call does not tell (a whole file was written, and what it held before is not known).
    """

    position: int
    path: str
    kind: ChangeKind
    additions: int | None
    deletions: int | None
    # The hunks of a unified diff, without file headers; empty where there is none, or where it is too long.
    # A hunk begins with `@@` alone where its place in the file is not known.
    diff: str = ""
    # Where a file that was moved was before.
    moved_from: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TouchedFile:
    """All changes of one file. additions, deletions: sums of what each change did, where that is known; not
    the difference between the first and the last state. unknown: changes of which it is not known.
    """

    path: str
    # created, if the session created it; moved, if it was only moved; deleted, if it is gone at the end.
    kind: ChangeKind
    changes: int
    additions: int
    deletions: int
    unknown: int
    moved_from: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRun:
    """exit_code: None where the result does not tell."""

    position: int
    command: str
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenTodo:
    """task: its id, where an agent makes and changes items one by one; else empty."""

    text: str
    is_in_progress: bool = False
    task: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionWork:
    """In the order of the messages, the newest ones. Changes of calls whose result is an error are left out.

    left_files, left_commands: how many there were beside those that are listed. left_changes: positions of
    messages whose changes are not among `changes`, because there are too many.
    """

    files: tuple[TouchedFile, ...] = ()
    left_files: int = 0
    changes: tuple[FileChange, ...] = ()
    left_changes: tuple[int, ...] = ()
    commands: tuple[CommandRun, ...] = ()
    left_commands: int = 0
    # Of the newest list; empty if all is done.
    todos: tuple[OpenTodo, ...] = ()
    # First words of each user message, by position; without blocks that clients add.
    titles: tuple[tuple[int, str], ...] = ()


NOTHING_DONE: Final = SessionWork()


def extend(
    before: SessionWork,
    changes: Iterable[FileChange],
    commands: Iterable[CommandRun],
    todos: Sequence[OpenTodo],
    titles: Iterable[tuple[int, str]],
) -> SessionWork:
    """The session with what later messages did. todos: those that are open now."""
    new = [replace(each, diff="") if len(each.diff) > _LONGEST_DIFF_CHARS else each for each in changes]
    touched = list_touched_files(new, before.files)
    files = _choose_newest(
        touched, _MOST_FILES, _FILES_CHARS, lambda file: len(file.path + (file.moved_from or ""))
    )
    all_changes = (*before.changes, *new)
    kept = _choose_newest(
        all_changes, _MOST_CHANGES, _CHANGES_CHARS, lambda each: len(each.path) + len(each.diff)
    )
    left = [*before.left_changes, *(each.position for each in all_changes[: len(all_changes) - len(kept)])]
    run = (*before.commands, *commands)
    newest = _choose_newest(run, _MOST_COMMANDS, _COMMANDS_CHARS, lambda each: len(each.command))
    return SessionWork(
        files=files,
        left_files=before.left_files + len(touched) - len(files),
        changes=kept,
        left_changes=tuple(dict.fromkeys(left))[-_MOST_CHANGES:],
        commands=newest,
        left_commands=before.left_commands + len(run) - len(newest),
        todos=_choose_newest(todos, _MOST_TODOS, _TODOS_CHARS, lambda each: len(each.text)),
        titles=_choose_newest(
            (*before.titles, *titles), _MOST_TITLES, _TITLES_CHARS, lambda each: len(each[1])
        ),
    )


def list_touched_files(
    changes: Iterable[FileChange], known: Iterable[TouchedFile] = ()
) -> tuple[TouchedFile, ...]:
    """Each file once, in the order of its first change, under its last name. known: what came of the changes
    before these.
    """
    files = {file.path: file for file in known}
    for change in changes:
        before = files.pop(change.moved_from, None) if change.moved_from is not None else None
        before = files.get(change.path) or before
        files[change.path] = _add(before, change)
    return tuple(files.values())


def _add(before: TouchedFile | None, change: FileChange) -> TouchedFile:
    file = before or TouchedFile(
        path=change.path, kind=change.kind, changes=0, additions=0, deletions=0, unknown=0
    )
    return TouchedFile(
        path=change.path,
        kind=_join_kinds(file.kind, change.kind),
        changes=file.changes + 1,
        additions=file.additions + (change.additions or 0),
        deletions=file.deletions + (change.deletions or 0),
        unknown=file.unknown + (change.additions is None or change.deletions is None),
        moved_from=file.moved_from or change.moved_from,
    )


def _join_kinds(before: ChangeKind, kind: ChangeKind) -> ChangeKind:
    if kind == "deleted" or before == "deleted":
        return kind
    return kind if before == "changed" else before


def _choose_newest(
    items: Sequence[T], most: int, most_chars: int, weigh: Callable[[T], int]
) -> tuple[T, ...]:
    """In their order: as many of the last ones as there is room for."""
    chosen: list[T] = []
    for item in reversed(items):
        most_chars -= weigh(item)
        if len(chosen) == most or most_chars < 0:
            break
        chosen.append(item)
    return tuple(reversed(chosen))


def shorten_command(text: str) -> str:
    return text if len(text) <= _LONGEST_COMMAND_CHARS else text[: _LONGEST_COMMAND_CHARS - 1] + "…"
