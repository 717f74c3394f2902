"""What the store does in its tables. Each function is one transaction, or one read.

Knows nothing of threads, files or the event loop. Times are seconds since 1970.
"""

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gateway.store.database import transaction
from gateway.store.interface import (
    Found,
    HeldLease,
    HeldPlace,
    Key,
    Lease,
    ListedRecord,
    Lookup,
    SlidingWindow,
    seal,
    unseal,
)
from gateway.store.waiting import (
    Drop,
    LetGo,
    News,
    NumberedPurge,
    Put,
    Release,
    Take,
    Waiting,
    Written,
)

_log = logging.getLogger(__name__)

NEWS_SECONDS: Final = 60.0
# The fence of a lease that is over is remembered for so long.
_FENCE_SECONDS: Final = 86_400.0
# A process that was away for longer has nothing that waits.
_TOMBSTONE_SECONDS: Final = 30 * 86_400.0
# Another process may still be at it.
_UNDONE_SECONDS: Final = 60.0
# Other processes wait for so many records.
DELETE_STEP: Final = 500
_EXPIRE_STEP: Final = 200
# Free pages are given back when there are so many, and so many at a time.
_VACUUM_PAGES: Final = 1_024

_GET: Final = "SELECT value FROM living WHERE kind=? AND tag=? AND name=? AND expires>?"
_GET_REST: Final = "SELECT grp, expires FROM record WHERE kind=? AND tag=? AND name=?"
_LIST: Final = "SELECT tag, name, grp, value FROM living WHERE kind=? AND expires>?"
_LIST_TAG: Final = "SELECT tag, name, grp, value FROM living WHERE kind=? AND tag=? AND expires>?"
# The plus keeps sqlite from the primary key, where a group is not together.
_LIST_GROUP: Final = (
    "SELECT tag, name, grp, value FROM living WHERE +kind=? AND tag=? AND grp=? AND expires>?"
)
_PUT: Final = "INSERT OR REPLACE INTO record VALUES (?,?,?,?,?,?,?)"
_DROP: Final = "DELETE FROM record WHERE kind=? AND tag=? AND name=?"
_DROP_OTHERS: Final = (
    "DELETE FROM lease WHERE tag=?",
    "DELETE FROM counter WHERE tag=?",
    "DELETE FROM place WHERE tag=?",
)
_FENCE: Final = "SELECT fence, expires FROM lease WHERE tag=? AND name=?"
_TOMBSTONES: Final = (
    "SELECT 1 FROM purge WHERE tag=?1 AND id>?2 AND grp IS NULL"
    " UNION ALL SELECT 1 FROM purge WHERE tag=?1 AND id>?2 AND grp=?3 LIMIT 1"
)
_REMOVE: Final = (
    "DELETE FROM record WHERE (kind, tag, name) IN ("
    "SELECT kind, tag, name FROM record INDEXED BY record_group WHERE tag=? AND known<? LIMIT ?)"
)
_REMOVE_GROUP: Final = (
    "DELETE FROM record WHERE (kind, tag, name) IN ("
    "SELECT kind, tag, name FROM record INDEXED BY record_group WHERE tag=? AND grp=? AND known<? LIMIT ?)"
)
_LET_GO: Final = "DELETE FROM place WHERE tag=? AND name=? AND member=?"
_SAY: Final = "INSERT INTO news(sender, tag, text, at) VALUES (?,?,?,?)"


class Moment(NamedTuple):
    """now: seconds since 1970. until: of `time.monotonic`, for locks. sender: the process."""

    now: float
    until: float
    sender: str


class Announced(NamedTuple):
    """What other processes have done since. newest: the number of the last news. is_gap: some are gone."""

    news: Sequence[tuple[str, str]]
    newest: int
    is_gap: bool
    purges: Sequence[NumberedPurge]


# Records


def find_first(
    connection: sqlite3.Connection, tag: str, lookups: Sequence[Lookup], now: float
) -> list[Found | None]:
    return [_find_one(connection, tag, lookup, now) for lookup in lookups]


def _find_one(connection: sqlite3.Connection, tag: str, lookup: Lookup, now: float) -> Found | None:
    for name in lookup.names:
        value = _get(connection, Key(tag, lookup.kind, name), now)
        if value is not None:
            return Found(name, value)
    return None


def _get(connection: sqlite3.Connection, key: Key, now: float) -> bytes | None:
    row = connection.execute(_GET, (key.kind, key.tag, key.name, now)).fetchone()
    return None if row is None else _open(key, row[0])


def _open(key: Key, sealed: object) -> bytes | None:
    value = unseal(key, sealed) if isinstance(sealed, bytes) else None
    if value is None:
        _log.warning("store: a damaged record of kind %s counts as absent", key.kind)
    return value


def list_records(
    connection: sqlite3.Connection, kind: str, tag: str | None, group: str | None, now: float
) -> list[ListedRecord]:
    if tag is None:
        rows = connection.execute(_LIST, (kind, now))
    elif group is None:
        rows = connection.execute(_LIST_TAG, (kind, tag, now))
    else:
        rows = connection.execute(_LIST_GROUP, (kind, tag, group, now))
    return list(_parse_rows(rows, kind, group if tag is None else None))


def _parse_rows(rows: sqlite3.Cursor, kind: str, group: str | None) -> Iterator[ListedRecord]:
    for tag, name, of_group, sealed in rows:
        key = Key(tag, kind, name)
        if group in (None, of_group) and (value := _open(key, sealed)) is not None:
            yield ListedRecord(key, of_group, value)


def write_batch(
    connection: sqlite3.Connection, moment: Moment, batch: Sequence[Waiting], known: int
) -> Written:
    is_durable = any(waiting.promise is not None for waiting in batch)
    with transaction(connection, moment.until, is_durable=is_durable):
        purges = _find_purges(connection, known)
        newest = find_newest_purge(connection)
        results = [_apply(connection, waiting, newest, moment) for waiting in batch]
    return Written(results, purges)


def _apply(connection: sqlite3.Connection, waiting: Waiting, newest: int, moment: Moment) -> bytes | None:
    match waiting:
        case Put():
            return _put(connection, waiting, newest, moment.now)
        case Drop(key=key):
            connection.execute(_DROP, (key.kind, key.tag, key.name))
        case Take(key=key, is_late=False):
            waiting.taken = None
            value = _get(connection, key, moment.now)
            if value is not None:
                group, expires = connection.execute(_GET_REST, (key.kind, key.tag, key.name)).fetchone()
                ttl = expires - moment.now
                waiting.taken = Put(key=key, value=value, ttl=ttl, group=group, if_absent=True)
            connection.execute(_DROP, (key.kind, key.tag, key.name))
            return value
        case Release(lease=lease):
            _release(connection, waiting, lease, moment)
        case LetGo(tag=tag, name=name, member=member):
            connection.execute(_LET_GO, (tag, name, member))
        case News(tag=tag, text=text):
            connection.execute(_SAY, (moment.sender, tag, text, moment.now))
    return None


def _put(connection: sqlite3.Connection, put: Put, newest: int, now: float) -> bytes | None:
    key = put.key
    if put.known < newest and connection.execute(_TOMBSTONES, (key.tag, put.known, put.group)).fetchone():
        return None
    lease = put.wants_lease
    if lease is not None:
        row = connection.execute(_FENCE, (lease.tag, lease.name)).fetchone()
        # Without a row the store has lost its records since, and nobody else has taken the lease.
        if row is not None and row[0] != lease.fence:
            return None
    if put.wants_absent and (stored := _get(connection, key, now)) is not None:
        return stored
    place = (key.kind, key.tag, key.name, put.group)
    connection.execute(_PUT, (*place, now + put.ttl, put.known, seal(key, put.value)))
    return put.value


# Leases


def claim_lease(
    connection: sqlite3.Connection, moment: Moment, tag: str, name: str, ttl: float
) -> Lease | HeldLease:
    """A fence is the time in microseconds, or one more than the last: a file that begins anew goes on."""
    with transaction(connection, moment.until):
        fence, expires = connection.execute(_FENCE, (tag, name)).fetchone() or (0, 0.0)
        if moment.now < expires <= _find_latest(moment, ttl):
            return HeldLease(tag, name, fence, expires - moment.now)
        fence = max(fence + 1, int(moment.now * 1e6))
        connection.execute(
            "INSERT OR REPLACE INTO lease VALUES (?,?,?,?)", (tag, name, fence, moment.now + ttl)
        )
    return Lease(tag, name, fence)


def renew_lease(connection: sqlite3.Connection, moment: Moment, lease: Lease, ttl: float) -> bool:
    with transaction(connection, moment.until):
        row = connection.execute(_FENCE, (lease.tag, lease.name)).fetchone()
        if row is not None and (row[0] != lease.fence or row[1] <= 0):
            return False
        connection.execute(
            "INSERT OR REPLACE INTO lease VALUES (?,?,?,?)",
            (lease.tag, lease.name, lease.fence, moment.now + ttl),
        )
    return True


def _release(connection: sqlite3.Connection, release: Release, lease: Lease, moment: Moment) -> None:
    """The row keeps the fence, so that a write that comes later is refused once another has claimed."""
    changed = connection.execute(
        "UPDATE lease SET expires=0 WHERE tag=? AND name=? AND fence=?", (lease.tag, lease.name, lease.fence)
    )
    if changed.rowcount:
        connection.execute(_SAY, (moment.sender, lease.tag, release.news, moment.now))


# Counters and places


def count_cost(
    connection: sqlite3.Connection,
    moment: Moment,
    key: tuple[str, str],
    cost: float,
    limit: tuple[float, float],
) -> float:
    """key: tag and name. limit: the most, and the seconds of the window."""
    most, window = limit
    slot = int(moment.now // window)
    with transaction(connection, moment.until):
        rows = connection.execute(
            "SELECT slot, used FROM counter WHERE tag=? AND name=? AND slot>=?", (*key, slot - 1)
        )
        used = dict(rows.fetchall())
        counters = SlidingWindow(slot, used.get(slot, 0.0), used.get(slot - 1, 0.0))
        wait = counters.find_wait(cost, most, window, moment.now)
        if wait == 0:
            connection.execute(
                "INSERT OR REPLACE INTO counter VALUES (?,?,?,?,?)",
                (*key, slot, counters.used + cost, (slot + 2) * window),
            )
    return wait


def hold_place(  # the store's method, in a transaction
    connection: sqlite3.Connection,
    moment: Moment,
    place: HeldPlace,
    leaving: Sequence[str],
    most: int,
    ttl: float,
) -> bool:
    """leaving: members that give their places back before."""
    tag, name, member = place
    with transaction(connection, moment.until):
        connection.executemany(_LET_GO, [(tag, name, each) for each in leaving])
        rows = connection.execute(
            "SELECT member FROM place WHERE tag=? AND name=? AND expires>? AND expires<=? AND member<>?",
            (tag, name, moment.now, _find_latest(moment, ttl), member),
        )
        if len(rows.fetchall()) >= most:
            return False
        connection.execute("INSERT OR REPLACE INTO place VALUES (?,?,?,?)", (*place, moment.now + ttl))
    return True


def _find_latest(moment: Moment, ttl: float) -> float:
    """No lease and no place of this kind ends later, unless the clock has been set back since. Twice the
    time, so that a clock that is set back a little takes nothing from a process that lives.
    """
    return moment.now + 2 * ttl


# NumberedPurge


def find_position(connection: sqlite3.Connection) -> tuple[int, int]:
    """The numbers of the newest news and the newest purge."""
    return find_newest_news(connection), find_newest_purge(connection)


def find_newest_purge(connection: sqlite3.Connection) -> int:
    (newest,) = connection.execute("SELECT max(id) FROM purge").fetchone()
    return newest or 0


def _find_purges(connection: sqlite3.Connection, known: int) -> list[NumberedPurge]:
    rows = connection.execute("SELECT id, tag, grp FROM purge WHERE id>? ORDER BY id", (known,))
    return [NumberedPurge(*row) for row in rows.fetchall()]


def bury(
    connection: sqlite3.Connection, moment: Moment, tag: str, group: str | None, known: int
) -> Sequence[NumberedPurge]:
    """The tombstone: what is older than it is absent from here on. `remove_buried` removes it.

    Returns all that the process may not know; the last one is this.
    """
    with transaction(connection, moment.until, is_durable=True):
        # A file that begins anew goes on where the process is.
        number = max(find_newest_purge(connection), known, int(moment.now * 1e6)) + 1
        connection.execute("INSERT INTO purge VALUES (?,?,?,?,0)", (number, tag, group, moment.now))
        for statement in _DROP_OTHERS if group is None else ():
            connection.execute(statement, (tag,))
        return _find_purges(connection, known)


def remove_buried(connection: sqlite3.Connection, moment: Moment, purge: NumberedPurge) -> int:
    """Some of what is older than the tombstone. Returns how many; less than `DELETE_STEP` at the end."""
    number, tag, group = purge
    with transaction(connection, moment.until, is_durable=True):
        if group is None:
            removed = connection.execute(_REMOVE, (tag, number, DELETE_STEP))
        else:
            removed = connection.execute(_REMOVE_GROUP, (tag, group, number, DELETE_STEP))
        if removed.rowcount < DELETE_STEP:
            connection.execute("UPDATE purge SET is_done=1 WHERE id=?", (number,))
    return removed.rowcount


def find_undone(connection: sqlite3.Connection, now: float) -> Sequence[NumberedPurge]:
    """Of processes that were killed meanwhile, or have been at it for long."""
    rows = connection.execute(
        "SELECT id, tag, grp FROM purge WHERE is_done=0 AND at<? ORDER BY id", (now - _UNDONE_SECONDS,)
    )
    return [NumberedPurge(*row) for row in rows.fetchall()]


def empty_log(connection: sqlite3.Connection) -> bool:
    """No byte of what is deleted is left in the log. False if another process is in the way."""
    (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not is_busy


# Sweeping


def sweep(connection: sqlite3.Connection, moment: Moment, *, also_records: bool) -> bool:
    """Removes some of what has expired. True if there may be more."""
    now = moment.now
    with transaction(connection, moment.until):
        connection.execute("DELETE FROM news WHERE at<?", (now - NEWS_SECONDS,))
        connection.execute("DELETE FROM counter WHERE expires<?", (now,))
        connection.execute("DELETE FROM place WHERE expires<?", (now,))
        connection.execute(
            "DELETE FROM lease WHERE fence<? AND expires<?", ((now - _FENCE_SECONDS) * 1e6, now)
        )
        # The last one is kept: its number is where the next begins.
        connection.execute(
            "DELETE FROM purge WHERE at<? AND is_done AND id<(SELECT max(id) FROM purge)",
            (now - _TOMBSTONE_SECONDS,),
        )
        return also_records and _remove_expired(connection, now)


def give_back(connection: sqlite3.Connection) -> bool:
    """Some of the free pages, if there are many. True if there may be more."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    if free <= _VACUUM_PAGES:
        return False
    # Each step of the statement gives back one page. `execute` takes one step, this takes all.
    connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
    (left,) = connection.execute("PRAGMA freelist_count").fetchone()
    return bool(_VACUUM_PAGES < left < free)


def remove_oldest(connection: sqlite3.Connection) -> None:
    """For a store in memory that is full: an eighth of the originals, those that expire first; without any an
    eighth of the records. A client that asks for an original may do without, a lost summary costs a new one.
    """
    originals, count = connection.execute(
        "SELECT count(*) FILTER (WHERE kind='original'), count(*) FROM record"
    ).fetchone()
    connection.execute(
        "DELETE FROM record WHERE (kind, tag, name) IN (SELECT kind, tag, name FROM record"
        " ORDER BY kind<>'original', expires LIMIT ?)",
        ((originals or count) // 8 + 1,),
    )


def _remove_expired(connection: sqlite3.Connection, now: float) -> bool:
    removed = connection.execute(
        "DELETE FROM record WHERE (kind, tag, name) IN (SELECT kind, tag, name FROM record"
        " INDEXED BY record_expires WHERE expires<=? ORDER BY expires LIMIT ?)",
        (now, _EXPIRE_STEP),
    )
    return removed.rowcount == _EXPIRE_STEP


# News


def find_newest_news(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name='news'").fetchone()
    return int(row[0]) if row is not None else 0


def find_announced(connection: sqlite3.Connection, after: int, known: int, sender: str) -> Announced:
    """after: the number of the last news that was read. The numbers have no holes."""
    connection.execute("BEGIN")
    try:
        rows = connection.execute(
            "SELECT id, sender, tag, text FROM news WHERE id>? ORDER BY id", (after,)
        ).fetchall()
        newest = find_newest_news(connection)
        purges = _find_purges(connection, known)
    finally:
        connection.execute("COMMIT")
    news = [(tag, text) for _, of, tag, text in rows if of != sender]
    return Announced(news, newest, len(rows) != newest - after, purges)
