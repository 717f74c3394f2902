"""What the operations about the work of a session answer. All of it quotes the conversation.

`message`: the position of a message in the conversation after its leading block.
"""

from typing import Literal

import msgspec

from gateway.core.compaction.request import SummaryKind
from gateway.core.session.work import ChangeKind
from gateway.sessions.record import TitleSource


class SessionFile(msgspec.Struct, frozen=True, kw_only=True):
    """additions, deletions: lines, summed over the changes of which they are known. unknown: the number of
    the others, such as a whole file that was written over one that was not seen.
    """

    path: str
    kind: ChangeKind
    changes: int
    additions: int
    deletions: int
    unknown: int
    moved_from: str | None


class SessionCommand(msgspec.Struct, frozen=True, kw_only=True):
    """exit_code: null where the result does not tell."""

    message: int
    command: str
    exit_code: int | None


class SessionTodo(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    in_progress: bool


class MessageTitle(msgspec.Struct, frozen=True, kw_only=True):
    """The first words of a user message."""

    message: int
    title: str


class LastSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary or digest that was made last; see the operation `listSummaries`."""

    key: str
    kind: SummaryKind
    created: str
    text: str


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation worked on. title_from: `client`, if the client named the session; `summary`, the
    first summary; `message`, the first user message.

    updated: when something was last noted; null if nothing is kept. left_files, left_commands: how many there
    were beside those that are listed, which are the newest. todos: those that are open.
    """

    id: str
    title: str | None
    title_from: TitleSource | None
    updated: str | None
    additions: int
    deletions: int
    files: list[SessionFile]
    left_files: int
    commands: list[SessionCommand]
    left_commands: int
    todos: list[SessionTodo]
    messages: list[MessageTitle]
    summary: LastSummary | None


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one file. before, after: what it held; null where that is not known.

    diff: a unified diff, the hunks of each change one after the other. A hunk begins with `@@` alone where
    its place in the file is not known. messages: those that changed the file.
    """

    file: str
    kind: ChangeKind
    moved_from: str | None
    before: str | None
    after: str | None
    additions: int
    deletions: int
    unknown: int
    messages: list[int]
    diff: str


class DiffPage(msgspec.Struct, frozen=True, kw_only=True):
    """message: whose changes these are; null for those of the whole session. left_off: messages whose changes
    are not among them, because the answer would be too large.
    """

    id: str
    message: int | None
    files: list[FileDiff]
    left_off: int


SessionForm = Literal["json", "markdown"]
