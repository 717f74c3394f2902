"""What the operations of the admin API answer. Times are ISO 8601 in UTC; money is in US dollars."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from gateway.activity.economics import Economics
from gateway.activity.rows import Row
from gateway.activity.series import PrefixChange
from gateway.core.compaction.plan import PlanName
from gateway.core.compaction.request import CompactionReason, CompactionTrigger, SummaryKind
from gateway.core.session.work import ChangeKind, TouchedFile
from gateway.originals.removed import RemovalKind
from gateway.purge import PurgeCount
from gateway.sessions.record import TitleSource
from gateway.settings import FormatName
from gateway.wire.arrays import Fate, SentKind


class ClientFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A wire format that clients may use here. provider: host and port of where it goes.

    key: what a client needs: a key of a `tenant`; its own for the provider, which is passed on (`caller`); or
    `none`, because the gateway has one.
    """

    format: FormatName
    provider: str
    key: Literal["tenant", "caller", "none"]


class GatewayPage(msgspec.Struct, frozen=True, kw_only=True):
    """data_url: where clients find the data port, without `/v1`; null if it does not listen.

    clients: what may be pointed at it, by wire format. A tenant's own upstream may be another one.

    texts: `token` if `admin.token` shows the texts of conversations, `policy` if each policy decides.
    """

    version: str
    data_url: str | None
    clients: list[ClientFormat]
    token_required: bool
    texts: Literal["token", "policy"]


class ConversationList(msgspec.Struct, frozen=True, kw_only=True):
    """next: the cursor of the next page; null if this was the last one."""

    conversations: list[Row]
    next: str | None = None


class ConversationSums(msgspec.Struct, frozen=True, kw_only=True):
    """Over conversations that are listed. conversations: sessions that a user would count: all with one label
    are one, and so are branches with what they branched off from; side calls are none. died in economics
    counts them, too.
    """

    conversations: int
    requests: int
    compactions: int
    prunings: int
    cache_breaks: int
    received_tokens: int
    sent_tokens: int
    saved_tokens: int
    summary_tokens: int
    saved_usd: float | None
    spent_usd: float | None
    summary_usd: float | None
    economics: Economics


class TenantTotals(ConversationSums, frozen=True, kw_only=True):
    tenant: str


class ModelTotals(ConversationSums, frozen=True, kw_only=True):
    """Of conversations whose newest request named this model. model: null for all that are not listed."""

    model: str | None


class TotalsPage(msgspec.Struct, frozen=True, kw_only=True):
    """models: those with the most requests first."""

    tenants: list[TenantTotals]
    models: list[ModelTotals]


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of a conversation, in tokens."""

    window: int
    soft: int
    hard: int


class TextsAllowed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the texts of a conversation are shown, and if not, which settings would show them."""

    allowed: bool
    reason: str | None


class ConversationPage(Row, frozen=True, kw_only=True):
    """body_in_memory: whether the newest body is still there, so that it can be shown and compacted now."""

    messages: int
    growth_tokens: int
    prune_batches: int
    body_in_memory: bool
    lines: Lines | None
    texts: TextsAllowed


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One answered request. received, sent: estimates; the other tokens as the upstream reported them.

    change: why its array is not that of the request before with something added at its end.
    """

    at: str
    messages: int
    received: int
    sent: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    plan: PlanName
    soft: int | None
    hard: int | None
    change: PrefixChange | None


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """left_off: older requests that are kept as sums only."""

    id: str
    requests: list[RequestRow]
    left_off: int


class CompactionBegun(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    begins: Literal["now", "at the next request"]


class LoggedCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the compaction log; see `reporting.compaction_log.LogEntry`. reason: null for pruning."""

    when: str
    kind: RemovalKind | Literal["edit"]
    trigger: CompactionTrigger
    reason: CompactionReason | None
    outcome: str
    pre_tokens: int | None
    post_tokens: int | None
    messages: int
    summary_tokens: int | None
    model: str | None
    calls: int
    seconds: float


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    log: list[LoggedCompaction]


class OriginalRow(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    bytes: int
    digest: str


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that one compaction or pruning took out of what is sent."""

    when: str
    kind: RemovalKind
    bytes: int
    messages: list[OriginalRow]


class OriginalList(msgspec.Struct, frozen=True, kw_only=True):
    """left_off: older removals that are not listed. next: the cursor of the page with them."""

    id: str
    taken: list[Removal]
    left_off: int
    next: str | None


class FoundPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message that is not sent any more. position: of the message, in the conversation that is
    named: this one, or the one that it branched off from. start, end: characters of the message's text.
    path: of the file that the tool read or changed. when: it was taken out of what is sent.
    """

    conversation: str
    position: int
    role: str
    tool: str | None
    path: str | None
    start: int
    end: int
    when: str
    text: str


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """found: the best first."""

    id: str
    found: list[FoundPart]


class ReceivedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the client sent it. position: in the conversation after its leading block; null inside it.

    bytes: as received. tokens: an estimate. message: null if the client no longer sends it.
    """

    position: int | None
    role: str
    bytes: int
    tokens: int
    fate: Fate
    message: Any


class SentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it went upstream. position: of the received one that it is; null for the leading block,
    and for those that stand for folded messages.
    """

    position: int | None
    kind: SentKind
    role: str
    tokens: int
    message: Any


class ArrayLengths(msgspec.Struct, frozen=True, kw_only=True):
    received: int
    sent: int


class MessagesPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the newest request. at: when it was answered; two parts with another one are not of the same
    request. total: of both whole arrays. next: the start of the next part; null if this is the last one.
    """

    id: str
    at: str
    format: str
    total: ArrayLengths
    received: list[ReceivedRow]
    sent: list[SentRow]
    next: int | None


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a summary. edited: a person wrote it. text: null where texts are not shown."""

    version: int
    created: str
    edited: bool
    text: str | None


SummaryState = Literal["prepared", "in_use", "replaced"]


class SummaryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A summary or a digest. text: null where texts are not shown, or if it is not kept any more.
    framing, recalled: what is sent before and behind the text; null likewise, and if there is nothing.

    calls, riding_calls (a part of them), prompt_tokens, cached_tokens, output_tokens, usd: of making it; null
    if not known. versions: the one in use, and the
    original of one that was edited. reason: null of one that was made for an
    earlier part of the conversation. state: `prepared` for a later request, `in_use` in the newest one, or
    `replaced`. in_use: whether that is the state.
    """

    key: str
    kind: SummaryKind
    covers: int
    trigger: CompactionTrigger
    reason: CompactionReason | None
    created: str
    model: str | None
    calls: int
    riding_calls: int = 0
    seconds: float
    prompt_tokens: int | None
    cached_tokens: int | None = None
    output_tokens: int | None
    usd: float | None
    tokens: int
    saved_tokens: int
    state: SummaryState
    in_use: bool
    version: int
    text: str | None
    framing: str | None = None
    recalled: str | None = None
    versions: list[VersionRow]


class SummaryList(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    summaries: list[SummaryRow]


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deleted: PurgeCount


# The work of a session. All of it quotes the conversation. `message`: the position of a message in the
# conversation after its leading block.


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
    files: Sequence[TouchedFile]
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
    are not among them, because only the newest are kept.
    """

    id: str
    message: int | None
    files: list[FileDiff]
    left_off: int


SessionForm = Literal["json", "markdown"]
