"""Which conversations a page of the list shows, and the sums of each tenant. Values in, values out.

A cursor names the last row of a page by its time and id. Rows that do not change while somebody pages through
the list come exactly once; one that is seen again moves to the beginning.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gateway.activity.rows import Row
from gateway.admin.answers import ConversationList, TenantTotals
from gateway.admin.operations import ListQuery
from gateway.core.money import add_usd

ListPlace = tuple[str, str]

_SUMS: Final = ("requests", "compactions", "prunings", "cache_breaks", "saved_tokens", "summary_tokens")
_MONEY: Final = ("saved_usd", "spent_usd", "summary_usd")


def make_page(rows: Iterable[Row], query: ListQuery) -> ConversationList:
    """rows: in any order. Raises ValueError for a cursor that is none."""
    after = read_cursor(query.cursor) if query.cursor is not None else None
    found = sorted((row for row in rows if _matches(row, query)), key=find_place, reverse=True)
    if after is not None:
        found = [row for row in found if find_place(row) < after]
    page = found[: query.limit]
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


def sum_tenants(rows: Iterable[Row]) -> list[TenantTotals]:
    """In the order of their names."""
    by_tenant: dict[str, list[Row]] = {}
    for row in rows:
        by_tenant.setdefault(row.tenant, []).append(row)
    return [_sum(tenant, by_tenant[tenant]) for tenant in sorted(by_tenant)]


def _sum(tenant: str, rows: Sequence[Row]) -> TenantTotals:
    sums: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in _SUMS}
    sums["received_tokens"] = sum(row.total_received_tokens for row in rows)
    sums["sent_tokens"] = sum(row.total_sent_tokens for row in rows)
    for name in _MONEY:
        money = None
        for row in rows:
            money = add_usd(money, getattr(row, name))
        sums[name] = money
    return TenantTotals(tenant=tenant, conversations=len(rows), **sums)


def _matches(row: Row, query: ListQuery) -> bool:
    wanted = ((query.tenant, row.tenant), (query.model, row.model), (query.purpose, row.purpose))
    return all(name in (None, value) for name, value in wanted) and _holds(row, query.q.casefold())


def _holds(row: Row, part: str) -> bool:
    names = (row.id, row.session or "", row.model, row.upstream, row.tenant)
    return any(part in name.casefold() for name in names)
