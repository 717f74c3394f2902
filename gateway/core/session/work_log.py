"""The work of a session as it is read, bounded: old diffs and commands go first."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, Self

from gateway.core.session.work import CommandRun, FileChange, OpenTodo, SessionWork

_MOST_CHANGES: Final = 5_000
_MOST_COMMANDS: Final = 1_000
_MOST_TITLES: Final = 1_000
_LONGEST_DIFF_CHARS: Final = 1 << 16
# Of all diffs together.
_MOST_DIFF_CHARS: Final = 1 << 20
_LONGEST_COMMAND_CHARS: Final = 2_000
# What a value takes in memory beside its texts.
_VALUE_BYTES: Final = 250


@dataclass(slots=True)
class WorkLog:
    _changes: list[FileChange] = field(default_factory=list)
    _commands: deque[CommandRun] = field(default_factory=deque)
    _titles: list[tuple[int, str]] = field(default_factory=list)
    _unlisted_changes: int = 0
    _unlisted_commands: int = 0
    _text_chars: int = 0
    _diff_chars: int = 0
    # The changes before this one have no diff any more.
    _first_diff: int = 0

    @classmethod
    def restore(cls, work: SessionWork) -> Self:
        log = cls()
        for change in work.changes:
            log.add_change(change)
        for command in work.commands:
            log.add_command(command)
        for position, title in work.titles:
            log.add_title(position, title)
        log._unlisted_changes += work.unlisted_changes
        log._unlisted_commands += work.unlisted_commands
        return log

    @property
    def weight_bytes(self) -> int:
        values = len(self._changes) + len(self._commands) + len(self._titles)
        return values * _VALUE_BYTES + self._text_chars + self._diff_chars

    def add_change(self, change: FileChange) -> None:
        if len(self._changes) >= _MOST_CHANGES:
            self._unlisted_changes += 1
            return
        if len(change.diff) > _LONGEST_DIFF_CHARS:
            change = replace(change, diff="")
        self._changes.append(change)
        self._text_chars += len(change.path)
        self._diff_chars += len(change.diff)
        while self._diff_chars > _MOST_DIFF_CHARS:
            old = self._changes[self._first_diff]
            self._diff_chars -= len(old.diff)
            self._changes[self._first_diff] = replace(old, diff="")
            self._first_diff += 1

    def add_command(self, run: CommandRun) -> None:
        run = replace(run, command=run.command[:_LONGEST_COMMAND_CHARS])
        self._commands.append(run)
        self._text_chars += len(run.command)
        if len(self._commands) > _MOST_COMMANDS:
            self._text_chars -= len(self._commands.popleft().command)
            self._unlisted_commands += 1

    def add_title(self, position: int, title: str) -> None:
        if title and len(self._titles) < _MOST_TITLES:
            self._titles.append((position, title))
            self._text_chars += len(title)

    def work(self, todos: tuple[OpenTodo, ...]) -> SessionWork:
        return SessionWork(
            changes=tuple(self._changes),
            commands=tuple(self._commands),
            todos=todos,
            titles=tuple(self._titles),
            unlisted_changes=self._unlisted_changes,
            unlisted_commands=self._unlisted_commands,
        )
