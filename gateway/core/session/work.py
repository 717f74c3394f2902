"""What the messages of a session did: files changed, commands run, things to do. Values only.

Nothing is guessed: what cannot be worked out for certain is left out, or its numbers are None.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

ChangeKind = Literal["created", "changed", "deleted", "moved"]


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
    text: str
    is_in_progress: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionWork:
    """In the order of the messages. Changes of calls whose result is an error are left out."""

    changes: tuple[FileChange, ...] = ()
    # The newest ones.
    commands: tuple[CommandRun, ...] = ()
    # Of the newest list; empty if all is done.
    todos: tuple[OpenTodo, ...] = ()
    # First words of each user message, by position; without blocks that clients add.
    titles: tuple[tuple[int, str], ...] = ()
    # The number of changes and of commands that are not listed, because there are too many.
    unlisted_changes: int = 0
    unlisted_commands: int = 0


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
    known = change.additions is not None and change.deletions is not None
    additions, deletions = change.additions or 0, change.deletions or 0
    unknown = 0 if known else 1
    if before is None:
        return TouchedFile(
            path=change.path,
            kind=change.kind,
            changes=1,
            additions=additions,
            deletions=deletions,
            unknown=unknown,
            moved_from=change.moved_from,
        )
    return TouchedFile(
        path=change.path,
        kind=_join_kinds(before.kind, change.kind),
        changes=before.changes + 1,
        additions=before.additions + additions,
        deletions=before.deletions + deletions,
        unknown=before.unknown + unknown,
        moved_from=before.moved_from or change.moved_from,
    )


def _join_kinds(before: ChangeKind, kind: ChangeKind) -> ChangeKind:
    if kind == "deleted" or before == "deleted":
        return kind
    return kind if before == "changed" else before
