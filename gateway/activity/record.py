"""What is recorded about one conversation: numbers, ids and names, and no text of it.

Tokens that a provider bills are those that the upstream reported. Money is in US dollars, and None while no
price is known.
"""

from typing import Final

import msgspec
from msgspec import structs

from gateway.activity.series import PointSeries, PrefixChange, RequestPoint
from gateway.activity.unshortened import Unshortened
from gateway.core.compaction.plan import PlanName
from gateway.core.compaction.request import CompactionTrigger, SummaryKind
from gateway.core.history.purpose import Purpose
from gateway.core.money import add_usd

# Of the records in the store.
KIND: Final = "activity"
# The newest ones of a conversation.
KEPT_SUMMARIES: Final = 50
_USD: Final = "_usd"


class SummaryNote(msgspec.Struct, frozen=True, kw_only=True):
    """A summary or a digest that was made."""

    # Of the pivot, in hex.
    key: str
    # How many messages it reaches over.
    covers: int
    at_seconds: float
    kind: SummaryKind
    trigger: CompactionTrigger
    # A word of `CompactionReason`, or of an earlier version.
    reason: str
    # Of the last summary call; None without a call.
    model: str | None = None
    calls: int = 0
    # How many of them were sent as a continuation of the conversation, whose prefix is in the cache.
    riding_calls: int = 0
    # How long it took.
    seconds: float = 0.0
    # What all its calls used, as upstream reported it; None if it reported none.
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    usd: float | None = None
    # Estimated tokens of its text with what is inserted around it, and of the array before and after.
    tokens: int = 0
    pre_tokens: int = 0
    post_tokens: int = 0
    # No request has been sent with it so far. Notes of earlier versions do not say so.
    is_unused: bool = False


class PivotNote(msgspec.Struct, frozen=True, kw_only=True):
    """The pivot that the newest request was sent with."""

    key: str
    kind: SummaryKind
    covers: int
    saved_tokens: int
    created_seconds: float


class Totals(msgspec.Struct, kw_only=True):
    """Sums over all requests of a conversation that were answered. Money has names that end in `_usd`."""

    requests: int = 0
    # Estimates of what came, of what was sent, and the difference.
    received_tokens: int = 0
    sent_tokens: int = 0
    saved_tokens: int = 0
    # As the upstream reported them. Cached and written ones are parts of the prompt.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    compactions: int = 0
    # Summaries and digests of these that no request has been sent with so far.
    unused_summaries: int = 0
    prunings: int = 0
    # Requests whose array was not the one before with something added at its end, and why. Records of earlier
    # versions do not say why.
    cache_breaks: int = 0
    compaction_breaks: int = 0
    pruning_breaks: int = 0
    edit_breaks: int = 0
    history_breaks: int = 0
    summary_calls: int = 0
    riding_calls: int = 0
    summary_prompt_tokens: int = 0
    summary_cached_tokens: int = 0
    summary_output_tokens: int = 0
    spent_usd: float | None = None
    saved_usd: float | None = None
    # Of all summary calls, and of those that ride.
    summary_usd: float | None = None
    riding_usd: float | None = None
    # Requests that can be compared with unshortened ones (see `unshortened`), and what they cost with all
    # summaries until then, and without the gateway. What is spent before the first of them is in `with_usd`,
    # which says something from that one on.
    compared_requests: int = 0
    with_usd: float | None = None
    without_usd: float | None = None

    def add(self, other: "Totals") -> None:
        for name, value in structs.asdict(other).items():
            own = getattr(self, name)
            setattr(self, name, add_usd(own, value) if name.endswith(_USD) else own + value)

    def count_break(self, change: PrefixChange) -> None:
        self.cache_breaks += 1
        name = f"{change}_breaks"
        setattr(self, name, getattr(self, name) + 1)

    def minus(self, other: "Totals") -> "Totals":
        """What came since the other, earlier ones."""
        earlier = structs.asdict(other)
        since = {name: value - (earlier[name] or 0) for name, value in structs.asdict(self).items() if value}
        return structs.replace(self, **since)


class _Fields(msgspec.Struct, kw_only=True):
    """Of a conversation, in memory and in the store."""

    # The id of the tenant, under which its state is kept, and the tenant's name as operators see it.
    owner: str
    id: str
    parent: str | None = None
    tenant: str
    # The client's name for its session.
    session: str | None = None
    purpose: Purpose = "main"
    model: str
    upstream: str
    first_seconds: float
    seen_seconds: float
    # Of the newest request, in tokens; 0 if no window is known.
    window: int = 0
    soft: int = 0
    hard: int = 0
    # Of the newest request: the plan, what it was sent with, and the chain's length.
    plan: PlanName = "passthrough"
    pivot: PivotNote | None = None
    batches: tuple[str, ...] = ()
    messages: int = 0
    scope: str = ""
    totals: Totals
    # The newest last.
    summaries: list[SummaryNote]
    unshortened: Unshortened = Unshortened()


class ConversationActivity(_Fields, kw_only=True):
    """One conversation. The book changes it in place: read it, and keep no reference to it."""

    series: PointSeries


class StoredActivity(_Fields, kw_only=True):
    """As it is stored. points: of its series, packed."""

    start_seconds: float
    points: bytes


def store_activity(activity: ConversationActivity) -> StoredActivity:
    """It shares the totals and the notes: encode it before the activity changes."""
    series = activity.series
    shared = {name: getattr(activity, name) for name in _Fields.__struct_fields__}
    return StoredActivity(**shared, start_seconds=series.start_seconds, points=series.pack())


def restore_activity(stored: StoredActivity) -> ConversationActivity | None:
    """None if its series is damaged."""
    try:
        series = PointSeries.unpack(stored.start_seconds, stored.points)
    except ValueError:
        return None
    shared = {name: getattr(stored, name) for name in _Fields.__struct_fields__}
    return ConversationActivity(**shared, series=series)


class Increment(msgspec.Struct, frozen=True):
    """What one process has added to a conversation. Each adds what is new to the record that the store has,
    so no sum is counted twice or lost.
    """

    totals: Totals
    # As many as there are requests in the totals, unless some of them are not kept any more.
    points: list[RequestPoint]
    summaries: list[SummaryNote]


def find_increment(activity: ConversationActivity, since: Totals) -> Increment:
    """What has come since it had these totals."""
    totals = activity.totals.minus(since)
    return Increment(
        totals=totals,
        points=activity.series.list_points(newest=totals.requests),
        summaries=activity.summaries[len(activity.summaries) - totals.compactions :]
        if totals.compactions <= len(activity.summaries)
        else activity.summaries,
    )


def merge(stored: ConversationActivity, own: ConversationActivity, added: Increment) -> ConversationActivity:
    """The record in the store, with what was added here. What is said of the newest request is that of the
    one that saw it last.
    """
    newest = stored if stored.seen_seconds > own.seen_seconds else own
    totals = structs.replace(stored.totals)
    totals.add(added.totals)
    points = [*stored.series.list_points(), *added.points]
    points.sort(key=lambda point: point.at_seconds)
    used = {note.key for note in own.summaries if not note.is_unused}
    summaries = sorted([*stored.summaries, *added.summaries], key=lambda note: note.at_seconds)
    summaries = [
        structs.replace(each, is_unused=each.is_unused and each.key not in used) for each in summaries
    ]
    first_seconds = min(stored.first_seconds, own.first_seconds)
    return structs.replace(
        newest,
        first_seconds=first_seconds,
        totals=totals,
        series=PointSeries(first_seconds, points),
        summaries=summaries[-KEPT_SUMMARIES:],
        unshortened=_join_unshortened(newest, stored, own, totals.requests),
    )


def _join_unshortened(
    newest: ConversationActivity, stored: ConversationActivity, own: ConversationActivity, requests: int
) -> Unshortened:
    """A conversation that would have ended for one process has ended for all. requests: of both together."""
    died_at = stored.unshortened.died_at
    if not died_at and own.unshortened.died_at:
        # What the others have seen came before.
        died_at = requests - (own.totals.requests - own.unshortened.died_at)
    return structs.replace(newest.unshortened, died_at=died_at)
