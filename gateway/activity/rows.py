"""A conversation as one row of a list: what the admin API, the page and the event `activity` show.

Times are ISO 8601 in UTC. Money is in US dollars, and null while no price is known.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.activity.economics import Economics, fill, make_economics, round_usd
from gateway.activity.record import ConversationActivity
from gateway.core.compaction.plan import PlanName
from gateway.core.compaction.request import SummaryKind
from gateway.core.history.purpose import Purpose

# Of the totals.
_SUMS: Final = ("requests", "compactions", "prunings", "cache_breaks", "saved_tokens")
_MONEY: Final = ("saved_usd", "spent_usd", "summary_usd")


class PivotRow(msgspec.Struct, frozen=True, kw_only=True):
    """The summary or digest that the newest request was sent with."""

    kind: SummaryKind
    covers: int
    saved_tokens: int
    created: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation. window, soft, hard: null if no window is known. title: of the session, which the list
    of conversations adds where texts are shown; null in events.

    Of the newest request: plan, prompt_tokens and output_tokens (0 if the upstream reported none),
    sent_tokens (the prompt_tokens, or else an estimate), and received_tokens (those and an estimate of what
    was left out). Of all requests: the other numbers.
    """

    id: str
    parent: str | None
    tenant: str
    session: str | None
    purpose: Purpose
    model: str
    upstream: str
    first_seen: str
    last_seen: str
    requests: int
    window: int | None
    soft: int | None
    hard: int | None
    plan: PlanName
    received_tokens: int
    sent_tokens: int
    prompt_tokens: int
    output_tokens: int
    compactions: int
    prunings: int
    cache_breaks: int
    total_received_tokens: int
    total_sent_tokens: int
    saved_tokens: int
    saved_usd: float | None
    spent_usd: float | None
    # What the calls for summaries used, prompt and output.
    summary_tokens: int
    summary_usd: float | None
    pivot: PivotRow | None
    title: str | None = None
    economics: Economics = Economics()
    # The request that would not have fit its window without the gateway; null if all would have.
    died_at: int | None = None


class ActivityEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event `activity`: the conversations that have changed, the newest first."""

    type: Literal["activity"] = "activity"
    conversations: Sequence[Row]


class SessionCount(NamedTuple):
    """How many sessions a user would count, and in how many of them a request would not have fit without the
    gateway.
    """

    sessions: int = 0
    died: int = 0


def count_sessions(rows: Iterable[Row]) -> SessionCount:
    """Conversations with one label are one session, and so are branches with what they branched off from.
    Side calls, such as for a title, and sub-agents are none of their own.
    """
    known = {row.id: row for row in rows}
    sessions: dict[tuple[str, ...], bool] = {}
    for row in known.values():
        if row.purpose == "main":
            name = _name_session(row, known)
            sessions[name] = sessions.get(name, False) or row.economics.died > 0
    return SessionCount(len(sessions), sum(sessions.values()))


def _name_session(row: Row, known: Mapping[str, Row]) -> tuple[str, ...]:
    """By its label, or by the first conversation that its branches go back to."""
    seen = {row.id}
    while row.session is None and row.parent is not None and row.parent in known and row.parent not in seen:
        row = known[row.parent]
        seen.add(row.id)
    return (row.tenant, "label", row.session) if row.session is not None else (row.tenant, "id", row.id)


def make_row(activity: ConversationActivity) -> Row:
    totals, newest = activity.totals, activity.series.find_newest()
    sums = {name: getattr(totals, name) for name in _SUMS}
    money = {name: round_usd(getattr(totals, name)) for name in _MONEY}
    pivot = activity.pivot
    return fill(
        Row,
        activity,
        **sums,
        **money,
        first_seen=render_time(activity.first_seconds),
        last_seen=render_time(activity.seen_seconds),
        window=activity.window or None,
        soft=activity.soft or None,
        hard=activity.hard or None,
        received_tokens=newest.received if newest is not None else 0,
        sent_tokens=newest.sent if newest is not None else 0,
        prompt_tokens=(newest.prompt_tokens or 0) if newest is not None else 0,
        output_tokens=(newest.output_tokens or 0) if newest is not None else 0,
        total_received_tokens=totals.received_tokens,
        total_sent_tokens=totals.sent_tokens,
        summary_tokens=totals.summary_prompt_tokens + totals.summary_output_tokens,
        pivot=fill(PivotRow, pivot, created=render_second(pivot.created_seconds)) if pivot else None,
        title=None,
        economics=make_economics(activity),
        died_at=activity.unshortened.died_at or None,
    )


def render_time(seconds: float) -> str:
    """Several workers may have seen a conversation in one second, so milliseconds are shown."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def render_second(seconds: float) -> str:
    """For what happens rarely."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
