"""Reads the messages of a session one after another, each once, and tells what they did.

A call counts once its result is known. Bounded: what is beyond is counted and not listed.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, NamedTuple, Self

from gateway.core.history.message import Message
from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.core.session.commands import is_only_patch, list_commands, list_patches, may_change_files
from gateway.core.session.edits import find_file_actions
from gateway.core.session.file_changes import FileCall, apply_actions, apply_patch
from gateway.core.session.known_files import KnownFiles
from gateway.core.session.outcomes import find_exit_code, is_done, was_run
from gateway.core.session.titles import find_asked, make_title, without_middle
from gateway.core.session.todos import TodoBoard, is_todo_call
from gateway.core.session.work import CommandRun, FileChange, OpenTodo, SessionWork
from gateway.core.session.written_calls import (
    WrittenCall,
    begins_anew,
    find_written_calls,
    find_written_results,
    without_results,
)

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
    """The work of a session as it is read, bounded: old diffs and commands go first."""

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


_MOST_OPEN_CALLS: Final = 256
# Arguments beyond this are not read.
_LONGEST_ARGUMENTS_CHARS: Final = 1 << 20
# All arguments of calls that wait in texts. An agent that writes its calls waits for one or a few of them.
_MOST_WRITTEN_CHARS: Final = 1 << 21


class _WaitingCall(NamedTuple):
    position: int
    tool: str
    arguments: str


@dataclass(slots=True)
class SessionReader:
    """Not safe for several threads. No text makes it raise.

    compares_lines: else changes are told, and how many lines they added and deleted is not.
    """

    _log: WorkLog = field(default_factory=WorkLog)
    _todos: TodoBoard = field(default_factory=TodoBoard)
    _files: KnownFiles = field(default_factory=KnownFiles)
    # By their ids, in their order.
    _open: dict[str, _WaitingCall] = field(default_factory=dict)
    # In the texts of replies, with their positions.
    _written: list[tuple[int, WrittenCall]] = field(default_factory=list)
    _has_tools: bool = False
    compares_lines: bool = True

    @classmethod
    def restore(cls, work: SessionWork) -> Self:
        """Goes on after a work that was read before; what files held is not known."""
        return cls(WorkLog.restore(work), TodoBoard(work.todos))

    @property
    def weight_bytes(self) -> int:
        """What it takes in memory, about."""
        waiting = sum(len(call.arguments) for call in self._open.values())
        waiting += sum(len(call.arguments) for _, call in self._written)
        return self._log.weight_bytes + self._files.chars + waiting

    def work(self) -> SessionWork:
        return self._log.work(self._todos.open)

    @property
    def has_tasks(self) -> bool:
        """Whether open items were made one by one, by calls that name them by an id."""
        return self._todos.has_tasks

    def feed(
        self,
        position: int,
        message: Message,
        entry: TranscriptEntry,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """The next message. Positions ascend; each is fed once.

        is_enough: whether no more results are to be looked at, because they took too long.
        """
        entries = list_entries([entry])
        results = [each for each in entries if each.is_result]
        for at, result in enumerate(results):
            call = self._take(message.results[at] if at < len(message.results) else "")
            if call is not None and not is_enough():
                self._answer(call, replace(result, text=without_middle(result.text)))
        if message.role == "user" and (asked := find_asked(entry)):
            self._hear(position, asked, is_enough)
        if message.role == "assistant":
            self._wait_for(position, find_written_calls(without_middle(entry.text)))
        calls = [call for each in entries for call in each.calls]
        self._has_tools = self._has_tools or bool(calls)
        for at, (tool, arguments) in enumerate(calls):
            identity = message.calls[at].id if len(message.calls) == len(calls) else f"{position}:{at}"
            if len(arguments) <= _LONGEST_ARGUMENTS_CHARS and len(self._open) < _MOST_OPEN_CALLS:
                self._open[identity] = _WaitingCall(position, tool, arguments)

    def _wait_for(self, position: int, written: Sequence[WrittenCall]) -> None:
        """Calls in the text of a reply. The oldest give way."""
        # An agent with tools that shows such blocks only talks about them.
        self._written += [(position, each) for each in written if each.needs_result or not self._has_tools]
        chars = list(accumulate(len(call.arguments) for _, call in reversed(self._written)))
        most = min(bisect_right(chars, _MOST_WRITTEN_CHARS), _MOST_OPEN_CALLS)
        self._written = self._written[len(self._written) - most :]

    def _hear(self, position: int, asked: str, is_enough: Callable[[], bool]) -> None:
        """What the user says, or what the agent says as the user: results of calls that stand in texts."""
        written, self._written = self._written, []
        results = find_written_results(asked, [call for _, call in written])
        for (at, call), result in zip(written, results, strict=True):
            if result is not None and not is_enough():
                waiting = _WaitingCall(at, call.tool, call.arguments)
                self._answer(waiting, TranscriptEntry("tool", result, (), 0, is_result=True))
        if begins_anew(asked):
            self._log = WorkLog()
        title = make_title(without_results(asked))
        if title:
            self._log.add_title(position, title)
            self._files.doubt()
            self._open.clear()

    def _take(self, identity: str) -> _WaitingCall | None:
        """A result without a call of its id answers the only open call, if there is just one."""
        if identity not in self._open and len(self._open) == 1:
            identity = next(iter(self._open))
        return self._open.pop(identity, None)

    def _answer(self, call: _WaitingCall, result: TranscriptEntry) -> None:
        commands = list_commands(call.tool, call.arguments)
        if commands:
            self._run(call, commands, result)
            return
        if is_todo_call(call.tool) and is_done(result.text, is_error=result.is_error):
            self._todos.read(call.tool, call.arguments, result.text)
        made = FileCall(call.position, result.text, result.is_error, self.compares_lines)
        actions = find_file_actions(call.tool, call.arguments)
        for change in apply_actions(self._files, actions, made):
            self._log.add_change(change)
        if not actions and _may_change_files(call.tool):
            self._files.doubt()

    def _run(self, call: _WaitingCall, commands: tuple[str, ...], result: TranscriptEntry) -> None:
        if not was_run(result.text):
            return
        code = find_exit_code(result.text)
        for command in commands:
            patched = list_patches(command)
            if patched and (is_done(result.text, is_error=result.is_error) if code is None else code == 0):
                for change in apply_patch(self._files, patched, call.position):
                    self._log.add_change(change)
            if not (patched and is_only_patch(command)):
                only = len(commands) == 1
                run = CommandRun(position=call.position, command=command, exit_code=code if only else None)
                self._log.add_command(run)
                if may_change_files(command):
                    self._files.doubt()


def _may_change_files(tool: str) -> bool:
    """Sub-agents work on the same files."""
    return tool.casefold() in ("task", "agent", "spawn_agent", "new_task", "delegate")
