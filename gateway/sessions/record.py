"""The record of a session's work, as it is stored: bounded, with the newest of everything.

It is made of the history alone, so every process that reads a history makes the same one.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar

import msgspec

from gateway.core.session.work import (
    CommandRun,
    FileChange,
    OpenTodo,
    SessionWork,
    TouchedFile,
    list_touched_files,
)

KIND: Final = "session"
# Where a title comes from, the best first: the client named its session itself; the first summary; the first
# user message.
TitleSource = Literal["client", "summary", "message"]
_RANKS: Final[Sequence[TitleSource]] = ("client", "summary", "message")

_MOST_FILES: Final = 500
_MOST_COMMANDS: Final = 200
_MOST_TITLES: Final = 200
_MOST_TODOS: Final = 100
_MOST_EDITS: Final = 2_000
# Characters of each list together, and of one command. A record has at most some 100 KB.
_FILES_CHARS: Final = 32_000
_COMMANDS_CHARS: Final = 32_000
_TITLES_CHARS: Final = 16_000
_TODOS_CHARS: Final = 16_000
_COMMAND_CHARS: Final = 400

# Of the changes that a record gives: it has only their sums.
UNKNOWN_POSITION: Final = -1

NOTHING_DONE: Final = SessionWork()

T = TypeVar("T")


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """link: the chain after the first `length` messages, in hex; so much of the history has been read. ends:
    beginnings of the links before it, by which a request is known that is sent once more.

    proofs: see `titles.list_proofs`. left_...: how many there were beside those that are listed.
    """

    owner: str
    id: str
    link: str
    length: int
    ends: tuple[str, ...] = ()
    updated_seconds: float
    proofs: tuple[str, ...] = ()
    title: str = ""
    title_from: TitleSource | None = None
    # Positions of the messages whose diffs are stored, in order.
    edits: tuple[int, ...] = ()
    files: tuple[TouchedFile, ...] = ()
    left_files: int = 0
    commands: tuple[CommandRun, ...] = ()
    left_commands: int = 0
    todos: tuple[OpenTodo, ...] = ()
    # First words of each user message, by position.
    titles: tuple[tuple[int, str], ...] = ()


class TitleOnly(msgspec.Struct, frozen=True):
    """Of a session, without the rest of it."""

    title: str = ""


def with_work(session: StoredSession, work: SessionWork, before: SessionWork = NOTHING_DONE) -> StoredSession:
    """The same session with what its messages did. before: what it has already, so that only what is new has
    to be added up.
    """
    if work.changes != before.changes:
        session = _with_files(session, work.changes, before.changes)
    if work.commands != before.commands or work.unlisted_commands != before.unlisted_commands:
        commands = _choose_newest(
            work.commands, _MOST_COMMANDS, _COMMANDS_CHARS, lambda run: min(len(run.command), _COMMAND_CHARS)
        )
        left = work.unlisted_commands + len(work.commands) - len(commands)
        shortened = tuple(map(_shorten, commands))
        session = msgspec.structs.replace(session, commands=shortened, left_commands=left)
    if work.todos != before.todos:
        todos = _choose_newest(work.todos, _MOST_TODOS, _TODOS_CHARS, lambda each: len(each.text))
        session = msgspec.structs.replace(session, todos=todos)
    if work.titles != before.titles:
        titles = _choose_newest(work.titles, _MOST_TITLES, _TITLES_CHARS, lambda each: len(each[1]))
        session = msgspec.structs.replace(session, titles=titles)
    return session


def _with_files(
    session: StoredSession, changes: Sequence[FileChange], before: Sequence[FileChange]
) -> StoredSession:
    known = len(before) if session.left_files == 0 and changes[: len(before)] == before else 0
    new = changes[known:]
    edits = sorted({*session.edits, *(change.position for change in new if change.position >= 0)})
    touched = list_touched_files(new, session.files if known else ())
    files = _choose_newest(
        touched, _MOST_FILES, _FILES_CHARS, lambda file: len(file.path) + len(file.moved_from or "")
    )
    return msgspec.structs.replace(
        session, edits=tuple(edits[-_MOST_EDITS:]), files=files, left_files=len(touched) - len(files)
    )


def with_title(session: StoredSession, title: str, source: TitleSource) -> StoredSession:
    """With this title, unless it has one from a better source, or from the first of several summaries."""
    if not title or not is_better(source, session.title_from):
        return session
    return msgspec.structs.replace(session, title=title, title_from=source)


def is_better(source: TitleSource, known: TitleSource | None) -> bool:
    """A client may name its session anew."""
    if known is None or source == "client":
        return True
    return _RANKS.index(source) < _RANKS.index(known)


def make_work(session: StoredSession) -> SessionWork:
    """The work again, for a reader that goes on behind it. All changes of a file are one."""
    changes = [change for file in session.files for change in _list_changes(file)]
    return SessionWork(
        changes=tuple(changes),
        commands=session.commands,
        todos=session.todos,
        titles=session.titles,
        unlisted_commands=session.left_commands,
    )


def _list_changes(file: TouchedFile) -> list[FileChange]:
    """As many as the file had, with its sums in the first of them that is known."""
    known = file.changes - file.unknown
    numbers: list[tuple[int | None, int | None]] = [(None, None)] * file.unknown
    numbers += [(file.additions, file.deletions)][:known] + [(0, 0)] * (known - 1)
    return [
        FileChange(
            position=UNKNOWN_POSITION,
            path=file.path,
            kind=file.kind,
            additions=additions,
            deletions=deletions,
            moved_from=file.moved_from,
        )
        for additions, deletions in numbers
    ]


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


def _shorten(command: CommandRun) -> CommandRun:
    if len(command.command) <= _COMMAND_CHARS:
        return command
    return CommandRun(
        position=command.position,
        command=command.command[: _COMMAND_CHARS - 1] + "…",
        exit_code=command.exit_code,
    )
