"""Which conversations a page of the list shows, and the sums over them of each tenant, and of each model.
Values in, values out.

A cursor names the last row of a page by its time and id. Rows that do not change while a reader pages through
the list come exactly once; one that is seen again moves to the beginning.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from gateway.activity.economics import sum_economics, sum_fields
from gateway.activity.record import ConversationActivity
from gateway.activity.rows import Row, count_sessions, render_time
from gateway.admin.answers import ConversationList, ModelTotals, TenantTotals, TotalsPage
from gateway.admin.operations import ListQuery

ListPlace = tuple[str, str]

# Clients choose the names of models. Those with the most requests are listed, the others are one sum.
_MOST_MODELS: Final = 100
_SUMS: Final = (
    *("requests", "compactions", "prunings", "cache_breaks", "saved_tokens", "summary_tokens"),
    *("saved_usd", "spent_usd", "summary_usd"),
)

# Behind every time.
_BEFORE_ALL: Final[ListPlace] = ("~", "")
# What is shown of a time.
_TICK_SECONDS: Final = 0.001


def choose_shown(found: Iterable[ConversationActivity], query: ListQuery) -> Iterator[ConversationActivity]:
    """At least those that the page shows, and the one behind it. Only they have to be made rows.

    found: the newest first. Raises ValueError for a cursor that is none.
    """
    after = read_cursor(query.cursor) if query.cursor is not None else _BEFORE_ALL
    chosen, last_seconds = 0, 0.0
    for activity in found:
        # Several seen in one millisecond stand in the order of their ids, so all of them are needed.
        if chosen > query.limit and activity.seen_seconds < last_seconds - _TICK_SECONDS:
            return
        if _matches(activity, query) and (render_time(activity.seen_seconds), activity.id) < after:
            chosen, last_seconds = chosen + 1, activity.seen_seconds
            yield activity


def make_page(rows: Iterable[Row], limit: int) -> ConversationList:
    """rows: in any order, with the one behind the page, if there is one."""
    found = sorted(rows, key=find_place, reverse=True)
    page = found[:limit]
    return ConversationList(
        conversations=page, next=make_cursor(page[-1]) if len(found) > len(page) else None
    )


def find_place(row: Row) -> ListPlace:
    """Where it stands in the list. Times are written in one form, so their texts compare as they do."""
    return row.last_seen, row.id


def make_cursor(row: Row) -> str:
    return urlsafe_b64encode("\n".join(find_place(row)).encode()).decode()


def read_cursor(cursor: str) -> ListPlace:
    """Raises ValueError."""
    seen, found, identity = urlsafe_b64decode(cursor).decode().partition("\n")
    if not found:
        raise ValueError("not a cursor")
    return seen, identity


def _matches(found: ConversationActivity, query: ListQuery) -> bool:
    if query.tenant not in (None, found.tenant) or query.model not in (None, found.model):
        return False
    names, part = (found.id, found.session or "", found.model, found.upstream), query.q.casefold()
    is_named = not part or any(part in name.casefold() for name in (*names, found.tenant))
    return query.purpose in (None, found.purpose) and is_named


def make_totals(rows: Sequence[Row]) -> TotalsPage:
    """Tenants in the order of their names; models with the most requests first."""
    tenants = _group((row.tenant, row) for row in rows)
    models = _group((row.model, row) for row in rows)
    ranked = sorted(models, key=lambda name: (-sum(row.requests for row in models[name]), name))
    sums = [ModelTotals(model=name, **_sum(models[name])) for name in ranked[:_MOST_MODELS]]
    others = [row for name in ranked[_MOST_MODELS:] for row in models[name]]
    if others:
        sums.append(ModelTotals(model=None, **_sum(others)))
    return TotalsPage(
        tenants=[TenantTotals(tenant=name, **_sum(tenants[name])) for name in sorted(tenants)], models=sums
    )


def _group(named: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for name, row in named:
        groups.setdefault(name, []).append(row)
    return groups


def _sum(rows: Sequence[Row]) -> dict[str, Any]:
    sums, counted = sum_fields(rows, _SUMS), count_sessions(rows)
    sums["conversations"] = counted.sessions
    sums["received_tokens"] = sum(row.total_received_tokens for row in rows)
    sums["sent_tokens"] = sum(row.total_sent_tokens for row in rows)
    sums["economics"] = replace(sum_economics(row.economics for row in rows), died=counted.died)
    return sums
