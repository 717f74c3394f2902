"""Which conversations a page of the list shows. Values in, values out.

A cursor names the last row of a page by its time and id. Rows that do not change while a reader pages through
the list come exactly once; one that is seen again moves to the beginning.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.activity.record import ConversationActivity
from gateway.activity.rows import Row, render_time
from gateway.admin.answers import ConversationList
from gateway.admin.operations import ListQuery

ListPlace = tuple[str, str]

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


def _matches(found: Row | ConversationActivity, query: ListQuery) -> bool:
    if query.tenant not in (None, found.tenant) or query.model not in (None, found.model):
        return False
    return query.purpose in (None, found.purpose) and (not query.q or _holds(found, query.q.casefold()))


def _holds(found: Row | ConversationActivity, part: str) -> bool:
    names = (found.id, found.session or "", found.model, found.upstream, found.tenant)
    return any(part in name.casefold() for name in names)
