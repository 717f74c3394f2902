"""What a session did, read from its messages one after another. A pure function of them: nothing else is
asked, and no text makes it raise.

A call counts once its result is known. Bounded: what is beyond is counted and not listed.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from gateway.core.history.message import Message
from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.core.session.commands import is_only_patch, list_commands, list_patches, may_change_files
from gateway.core.session.edits import ApplyPatch, find_file_actions
from gateway.core.session.file_changes import FileCall, WrittenFiles, apply_actions
from gateway.core.session.outcomes import find_exit_code, was_run
from gateway.core.session.titles import find_asked, make_title, without_middle
from gateway.core.session.todos import follow_todos, is_todo_call
from gateway.core.session.work import (
    NOTHING_DONE,
    CommandRun,
    FileChange,
    OpenTodo,
    SessionWork,
    extend,
    shorten_command,
)
from gateway.core.session.written_calls import (
    WrittenCall,
    begins_anew,
    find_written_calls,
    find_written_results,
    without_results,
)

_MOST_OPEN_CALLS: Final = 256
# Arguments beyond this are not read.
_LONGEST_ARGUMENTS_CHARS: Final = 1 << 20
# All arguments of calls that wait in texts. An agent that writes its calls waits for one or a few of them.
_MOST_WRITTEN_CHARS: Final = 1 << 21
# What is new is added up now and then, so that memory is bounded.
_MOST_NEW: Final = 100
# Sub-agents work on the same files.
_SUB_AGENTS: Final = frozenset({"task", "agent", "spawn_agent", "new_task", "delegate"})


class _WaitingCall(NamedTuple):
    position: int
    tool: str
    arguments: str


@dataclass(slots=True)
class SessionReader:
    """Not safe for several threads.

    before: what messages did that are not read here; empty unless the client no longer sends them. files:
    where no lines are to be compared, with no steps.
    """

    before: SessionWork = NOTHING_DONE
    files: WrittenFiles = field(default_factory=WrittenFiles)
    _todos: tuple[OpenTodo, ...] = field(init=False)
    _changes: list[FileChange] = field(default_factory=list)
    _commands: list[CommandRun] = field(default_factory=list)
    _titles: list[tuple[int, str]] = field(default_factory=list)
    # By their ids, in their order.
    _open: dict[str, _WaitingCall] = field(default_factory=dict)
    # In the texts of replies, with their positions.
    _written: list[tuple[int, WrittenCall]] = field(default_factory=list)
    _has_tools: bool = False

    def __post_init__(self) -> None:
        self._todos = self.before.todos

    def work(self) -> SessionWork:
        """What was done until now."""
        return extend(self.before, self._changes, self._commands, self._todos, self._titles)

    def feed(self, position: int, message: Message, entry: TranscriptEntry) -> None:
        """The next message. Positions ascend; each is fed once."""
        entries = list_entries([entry])
        results = [each for each in entries if each.is_result]
        for at, result in enumerate(results):
            call = self._take(message.results[at] if at < len(message.results) else "")
            if call is not None:
                self._answer(call, without_middle(result.text), is_error=result.is_error)
        if message.role == "user" and (asked := find_asked(entry)):
            self._hear(position, asked)
        if message.role == "assistant":
            self._wait_for(position, find_written_calls(without_middle(entry.text)))
        calls = [call for each in entries for call in each.calls]
        self._has_tools = self._has_tools or bool(calls)
        for at, (tool, arguments) in enumerate(calls):
            identity = message.calls[at].id if len(message.calls) == len(calls) else f"{position}:{at}"
            if len(arguments) <= _LONGEST_ARGUMENTS_CHARS and len(self._open) < _MOST_OPEN_CALLS:
                self._open[identity] = _WaitingCall(position, tool, arguments)
        if len(self._changes) + len(self._commands) + len(self._titles) > _MOST_NEW:
            self._start_from(self.work())

    def _start_from(self, before: SessionWork) -> None:
        self.before, self._changes, self._commands, self._titles = before, [], [], []

    def _wait_for(self, position: int, written: Sequence[WrittenCall]) -> None:
        """Calls in the text of a reply. The oldest give way."""
        # An agent with tools that shows such blocks only talks about them.
        self._written += [(position, each) for each in written if each.needs_result or not self._has_tools]
        chars = list(accumulate(len(call.arguments) for _, call in reversed(self._written)))
        most = min(bisect_right(chars, _MOST_WRITTEN_CHARS), _MOST_OPEN_CALLS)
        self._written = self._written[len(self._written) - most :]

    def _hear(self, position: int, asked: str) -> None:
        """What the user says, or what the agent says as the user: results of calls that stand in texts."""
        written, self._written = self._written, []
        results = find_written_results(asked, [call for _, call in written])
        for (at, call), result in zip(written, results, strict=True):
            if result is not None:
                self._answer(_WaitingCall(at, call.tool, call.arguments), result, is_error=False)
        if begins_anew(asked):
            self._start_from(NOTHING_DONE)
        if title := make_title(without_results(asked)):
            self._titles.append((position, title))
            self.files.doubt()
            self._open.clear()

    def _take(self, identity: str) -> _WaitingCall | None:
        """A result without a call of its id answers the only open call, if there is just one."""
        if identity not in self._open and len(self._open) == 1:
            identity = next(iter(self._open))
        return self._open.pop(identity, None)

    def _answer(self, call: _WaitingCall, result: str, *, is_error: bool) -> None:
        made = FileCall(call.position, result, is_error)
        commands = list_commands(call.tool, call.arguments)
        if commands:
            self._run(made, commands)
            return
        if is_todo_call(call.tool) and made.is_done:
            self._todos = follow_todos(self._todos, call.tool, call.arguments, result)
        actions = find_file_actions(call.tool, call.arguments)
        self._changes += apply_actions(self.files, actions, made)
        if not actions and call.tool.casefold() in _SUB_AGENTS:
            self.files.doubt()

    def _run(self, call: FileCall, commands: tuple[str, ...]) -> None:
        if not was_run(call.result):
            return
        code = find_exit_code(call.result) if len(commands) == 1 else None
        for command in commands:
            patched = list_patches(command)
            if patched:
                self._changes += apply_actions(self.files, [ApplyPatch(patched)], call)
            if not (patched and is_only_patch(command)):
                shown = shorten_command(command)
                self._commands.append(CommandRun(position=call.position, command=shown, exit_code=code))
                if may_change_files(command):
                    self.files.doubt()
