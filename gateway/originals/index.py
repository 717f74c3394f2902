"""The search index over originals: one file of SQLite with those of all tenants in pieces, and a full-text
index of their words.

What is added and deleted together is a batch: some messages of one list of the archive (`removed`). Each
piece carries the name of its list as one more word, and that of its conversation. A question asks for the
lists that may be seen together with its words, so the full-text index itself passes over all others, and
nothing of them counts. What is deleted has no row any more at once; its words leave in steps afterwards. The
file can always be made again from the store. Errors are those of `sqlite3`, and `Damaged`.
"""

import hashlib
import json
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from gateway.core.search.cutting import cut_text
from gateway.core.search.ranking import choose_best, score_pieces
from gateway.core.search.terms import QueryTerms, Term, find_extra_words, quote_term
from gateway.originals.parts import Part
from gateway.store.database import Damaged

# Grows with what the file holds, or how: a file with another number is made again. The files of earlier
# versions had 1 to 4.
_VERSION: Final = 5
# For another process that writes. A batch is added in some 100 ms.
_BUSY_SECONDS: Final = 2.0
_CACHE_KIBIBYTES: Final = 8_192
# Of a word that stands in more pieces, the newest count.
_MOST_MATCHES: Final = 1_500
# A word that stands in fewer pieces is looked for as the beginning of words, too.
_MOST_ALONE: Final = 10
# Only the rarest are. What a beginning takes grows with the words of all tenants; for those of four to six
# letters the index holds the beginnings themselves.
_MOST_BEGINNINGS: Final = 2
# So many lists of a conversation are asked for by their names, more by that of the conversation.
_MOST_LISTS: Final = 50
_MOST_POSITIONS: Final = 20
# Other processes, and other work of this one, wait for so many pages.
_STEP_PAGES: Final = 256
# What has expired or made room leaves the full-text index, which is written anew for it, together with a
# deletion, or once it is so much of all.
_WORTH_SHARE: Final = 0.1
# When there is too much, so much less is kept that the next batch does not begin it again.
_KEPT_SHARE: Final = 0.85
# The number of a batch that is deleted and whose words are still there: they may stay until there are enough;
# they are to leave; a merge that takes them out has begun.
_GONE, _ASKED, _MERGING = range(3)
_MATCH: Final = (
    "SELECT words.rowid, batch FROM words CROSS JOIN pieces ON pieces.id = words.rowid "
    "WHERE words MATCH ? ORDER BY words.rowid DESC"
)
_LOAD: Final = (
    "SELECT list, position, start, role, tool, path, text, extra FROM pieces "
    "JOIN batches ON batches.id = batch WHERE pieces.id = ?"
)
_SCHEMA: Final = """
CREATE TABLE batches(
    id INTEGER PRIMARY KEY, tag TEXT NOT NULL, list TEXT NOT NULL, number INTEGER NOT NULL,
    of INTEGER NOT NULL, expires REAL NOT NULL, pieces INTEGER NOT NULL, UNIQUE(tag, list, number)
);
CREATE TABLE pieces(
    id INTEGER PRIMARY KEY, batch INTEGER NOT NULL, position INTEGER NOT NULL, start INTEGER NOT NULL,
    role TEXT NOT NULL, tool TEXT, path TEXT, text TEXT NOT NULL, extra TEXT NOT NULL, scope TEXT NOT NULL
);
CREATE INDEX by_batch ON pieces(batch);
CREATE TABLE mentions(
    batch INTEGER NOT NULL, path TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY(batch, path, position)
) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(
    text, extra, scope, content='pieces', content_rowid='id', prefix='4 6',
    tokenize="unicode61 remove_diacritics 2"
);
"""


class IndexBounds(NamedTuple):
    """In bytes of the file: of all tenants together, and of one."""

    total: int
    tenant: int


class IndexedMessage(NamedTuple):
    position: int
    parts: Sequence[Part]


class IndexBatch(NamedTuple):
    """Messages of a list. number: of the batch in its list, which has `of` of them. expires: Unix time."""

    tag: str
    list_name: str
    number: int
    of: int
    expires: float
    messages: Sequence[IndexedMessage]


class FoundRow(NamedTuple):
    list_name: str
    position: int
    start: int
    role: str
    tool: str | None
    path: str | None
    text: str
    extra: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Mention(NamedTuple):
    """positions: of the newest messages that name the path, in ascending order."""

    path: str
    mentions: int
    positions: list[int]


def find_obstacle() -> str | None:
    """Why this SQLite cannot search; None if it can."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.executescript(_SCHEMA)
            _find_batches(connection, "", [])
        except sqlite3.Error as error:
            return f"SQLite {sqlite3.sqlite_version}: {error}"
    return None


def open_index(path: Path) -> sqlite3.Connection:
    """The file exists; it may be empty."""
    address = f"file:{quote(str(path))}?mode=rw"
    index = sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        index.execute(f"PRAGMA cache_size=-{_CACHE_KIBIBYTES}")
        # What is deleted leaves the file.
        index.execute("PRAGMA secure_delete=ON").fetchall()
        index.execute("PRAGMA synchronous=NORMAL")
        index.execute("PRAGMA trusted_schema=OFF")
        if _read_number(index, "PRAGMA user_version") == 0:
            index.execute("PRAGMA auto_vacuum=INCREMENTAL")
            with _changing(index):
                _make_tables(index)
        if _read_number(index, "PRAGMA user_version") != _VERSION:
            raise Damaged("another version")
    except (Damaged, sqlite3.Error):
        index.close()
        raise
    return index


def _make_tables(index: sqlite3.Connection) -> None:
    """Unless another process was first."""
    if _read_number(index, "PRAGMA user_version") == 0:
        for statement in _SCHEMA.split(";\n"):
            index.execute(statement)
        index.execute(f"PRAGMA user_version={_VERSION}")


@contextmanager
def _changing(index: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    index.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        index.execute("ROLLBACK")
        raise
    index.execute("COMMIT")


def _read_number(index: sqlite3.Connection, statement: str, values: Sequence[object] = ()) -> int:
    return int(index.execute(statement, values).fetchone()[0])


# What is added.


def list_whole(index: sqlite3.Connection, tag: str, list_names: Sequence[str]) -> set[str]:
    """Those of the lists of which the index has all batches."""
    batches = _find_batches(index, tag, list_names)
    counts = Counter(batch.list_name for batch in batches)
    return {batch.list_name for batch in batches if counts[batch.list_name] == batch.of}


def add_batch(index: sqlite3.Connection, batch: IndexBatch) -> None:
    """All or nothing. Does nothing if it is there."""
    with _changing(index):
        added = index.execute(
            "INSERT OR IGNORE INTO batches(tag, list, number, of, expires, pieces) VALUES (?, ?, ?, ?, ?, 0)",
            (batch.tag, batch.list_name, batch.number, batch.of, batch.expires),
        )
        if not added.rowcount:
            return
        number, conversation = added.lastrowid, _get_conversation(batch.list_name)
        scope = f"{_name_scope('r', batch.tag, batch.list_name)} {_name_scope('c', batch.tag, conversation)}"
        for message in batch.messages:
            for part in message.parts:
                _add_part(index, number, scope, message.position, part)
        index.execute(
            "UPDATE batches SET pieces = (SELECT count(*) FROM pieces WHERE batch = batches.id) WHERE id = ?",
            (number,),
        )


def _get_conversation(list_name: str) -> str:
    return list_name.rpartition("/")[0]


def _name_scope(kind: str, tag: str, name: str) -> str:
    """A word that no text can hold by chance; texts are not looked into for it anyway."""
    return kind + hashlib.sha256(f"{tag}/{name}".encode()).hexdigest()[:24]


def _add_part(index: sqlite3.Connection, batch: int | None, scope: str, position: int, part: Part) -> None:
    for start, end in cut_text(part.text):
        text = part.text[start:end]
        words = (text, " ".join(find_extra_words(text)), scope)
        piece = index.execute(
            "INSERT INTO pieces(batch, position, start, role, tool, path, text, extra, scope) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (batch, position, part.start + start, part.role, part.tool, part.path, *words),
        ).lastrowid
        index.execute("INSERT INTO words(rowid, text, extra, scope) VALUES (?, ?, ?, ?)", (piece, *words))
    for path in part.paths:
        index.execute("INSERT OR IGNORE INTO mentions VALUES (?, ?, ?)", (batch, path, position))


# What is asked.


def find_pieces(
    index: sqlite3.Connection, tag: str, list_names: Sequence[str], terms: QueryTerms, most: float = math.inf
) -> list[FoundRow]:
    """The best first. Only what the lists hold is seen, and counted. most: seconds, then TimeoutError:
    SQLite counts no steps inside of the full-text index, so the clock is looked at before each statement.
    """
    sizes = {batch.id: batch.pieces for batch in _find_batches(index, tag, list_names)}
    began, scope, total = time.monotonic(), _name_scopes(tag, list_names), sum(sizes.values())
    if not total:
        return []

    def run(statement: str, value: object) -> sqlite3.Cursor:
        if time.monotonic() - began > most:
            raise TimeoutError
        return index.execute(statement, (value,))

    def match(term: Term, beginning: str = "") -> list[int]:
        found = run(_MATCH, f"(scope : ({scope})) AND ({{text extra}} : {quote_term(term)}{beginning})")
        # A conversation has lists that may not be seen, too.
        return list(islice((piece for piece, batch in found if batch in sizes), _MOST_MATCHES))

    matches = {term: match(term) for term in terms}
    rare = [term for term in terms if term.may_begin_words and len(matches[term]) < _MOST_ALONE]
    for term in sorted(rare, key=lambda each: len(matches[each]))[:_MOST_BEGINNINGS]:
        if time.monotonic() - began <= most / 2:
            matches[term] = match(term, " *")
    rows = {piece: FoundRow(*run(_LOAD, piece).fetchone()) for piece in choose_best(matches, total)}
    ranked = score_pieces({piece: f"{row.text} {row.extra}" for piece, row in rows.items()}, matches, total)
    return [rows[piece] for piece in ranked]


def _name_scopes(tag: str, list_names: Sequence[str]) -> str:
    """Which pieces are looked at, by their lists, or by the conversation that has many of these."""
    counts = Counter(map(_get_conversation, list_names))
    large = {conversation for conversation, count in counts.items() if count > _MOST_LISTS}
    names = [_name_scope("r", tag, name) for name in list_names if _get_conversation(name) not in large]
    return " OR ".join([*names, *(_name_scope("c", tag, each) for each in large)])


def list_mentions(index: sqlite3.Connection, tag: str, list_names: Sequence[str], most: int) -> list[Mention]:
    """The most recently mentioned first."""
    batches = json.dumps([batch.id for batch in _find_batches(index, tag, list_names)])
    found = index.execute(
        "SELECT path, count(DISTINCT position), max(position) FROM mentions "
        "WHERE batch IN (SELECT value FROM json_each(?)) "
        "GROUP BY path ORDER BY max(position) DESC, path LIMIT ?",
        (batches, most),
    ).fetchall()
    return [Mention(path, count, _find_positions(index, batches, path)) for path, count, _ in found]


def _find_positions(index: sqlite3.Connection, batches: str, path: str) -> list[int]:
    found = index.execute(
        "SELECT DISTINCT position FROM mentions WHERE batch IN (SELECT value FROM json_each(?)) AND path = ? "
        "ORDER BY position DESC LIMIT ?",
        (batches, path, _MOST_POSITIONS),
    )
    return sorted(position for (position,) in found)


class _KnownBatch(NamedTuple):
    id: int
    list_name: str
    of: int
    pieces: int


def _find_batches(index: sqlite3.Connection, tag: str, list_names: Sequence[str]) -> list[_KnownBatch]:
    found = index.execute(
        "SELECT id, list, of, pieces FROM batches WHERE tag = ? AND list IN (SELECT value FROM json_each(?))",
        (tag, json.dumps(list_names)),
    )
    return [_KnownBatch(*row) for row in found]


# What is deleted.


def drop_owned(index: sqlite3.Connection, tag: str, conversation_id: str | None) -> None:
    """Everything of a tenant, or of one conversation of it. Its words are asked to leave the file."""
    beginning = "" if conversation_id is None else f"{conversation_id}/"
    found = index.execute(
        "SELECT id FROM batches WHERE tag = ? AND substr(list, 1, ?) = ?",
        (tag, len(beginning), beginning),
    )
    batches = [batch for (batch,) in found.fetchall()]
    if batches and conversation_id is None:
        # Until the file was written anew.
        index.execute("PRAGMA application_id=1")
    _drop(index, batches, _ASKED)
    # What has expired may have been of it, too.
    index.execute("UPDATE batches SET number = ? WHERE tag = '' AND number = ?", (_ASKED, _GONE))


def drop_expired(index: sqlite3.Connection, now: float) -> None:
    """now: Unix time."""
    found = index.execute("SELECT id FROM batches WHERE expires <= ? AND tag != ''", (now,)).fetchall()
    _drop(index, [batch for (batch,) in found], _GONE)


def drop_excess(index: sqlite3.Connection, bounds: IndexBounds) -> None:
    """Makes the bounds hold, once words have left: the newest stay as far as they fit, of each and all."""
    total = _read_number(index, "SELECT total(pieces) FROM batches")
    # What has been deleted and is not given back yet is of nobody.
    pages = _read_number(index, "PRAGMA page_count") - _read_number(index, "PRAGMA freelist_count")
    size = pages * _read_number(index, "PRAGMA page_size")
    if size <= min(bounds) or not total:
        return
    found = index.execute("SELECT id, tag, pieces FROM batches WHERE tag != '' ORDER BY id DESC").fetchall()
    if _list_excess(found, bounds, size / total):
        _drop(index, _list_excess(found, bounds, size / total / _KEPT_SHARE), _GONE)


def _list_excess(
    batches: Sequence[tuple[int, str, int]], bounds: IndexBounds, piece_bytes: float
) -> list[int]:
    """batches: each with its tenant and the number of its pieces; the newest first."""
    kept, excess = Counter[str](), list[int]()
    for batch, tag, pieces in batches:
        of_tenant, of_all = kept[tag] + pieces, kept.total() + pieces
        if of_tenant * piece_bytes > bounds.tenant or of_all * piece_bytes > bounds.total:
            excess.append(batch)
        else:
            kept[tag] = of_tenant
    return excess


def _drop(index: sqlite3.Connection, batches: Sequence[int], state: int) -> None:
    """The batches stay without an owner until their words are gone, so that a later process goes on."""
    for batch in batches:
        with _changing(index):
            index.execute(
                "INSERT INTO words(words, rowid, text, extra, scope) "
                "SELECT 'delete', id, text, extra, scope FROM pieces WHERE batch = ?",
                (batch,),
            )
            index.execute("DELETE FROM pieces WHERE batch = ?", (batch,))
            index.execute("DELETE FROM mentions WHERE batch = ?", (batch,))
            index.execute(
                "UPDATE batches SET tag = '', list = id, number = ?, expires = 0 WHERE id = ?", (state, batch)
            )


def let_words_go(index: sqlite3.Connection) -> bool:
    """A step in which what was deleted leaves the full-text index, which only marks it, and then the file.
    False if nothing is left to do now. Processes that take turns go on with one merge.
    """
    merge, total = "INSERT INTO words(words, rank) VALUES ('merge', ?)", "SELECT total(pieces) FROM batches"
    with _changing(index):
        counts = dict(index.execute("SELECT number, sum(pieces) FROM batches WHERE tag = '' GROUP BY number"))
        if _MERGING in counts:
            changes = index.total_changes
            index.execute(merge, (_STEP_PAGES,))
            # https://www.sqlite.org/fts5.html, 6.7: a step that has nothing left to do makes one change.
            if index.total_changes - changes < 2:
                index.execute("DELETE FROM batches WHERE tag = '' AND number = ?", (_MERGING,))
            return True
        if _ASKED in counts or (counts and counts[_GONE] >= _read_number(index, total) * _WORTH_SHARE):
            index.execute("UPDATE batches SET number = ? WHERE tag = ''", (_MERGING,))
            # With the usual 4, a merge of fewer segments stands still behind batches that come meanwhile.
            index.execute("INSERT INTO words(words, rank) VALUES ('usermerge', 2)")
            # A negative number begins a merge of all there is.
            index.execute(merge, (-_STEP_PAGES,))
            return True
    if free_pages := _read_number(index, "PRAGMA freelist_count"):
        # `execute` would end this after one page.
        index.executescript(f"PRAGMA incremental_vacuum({_STEP_PAGES})")
    return free_pages > _STEP_PAGES


def rewrite(index: sqlite3.Connection) -> None:
    """After a purge: pages that SQLite has split or joined keep bytes of what was deleted."""
    if needs_rewrite(index):
        index.execute("VACUUM")
        index.execute("PRAGMA application_id=0")


def needs_rewrite(index: sqlite3.Connection) -> bool:
    """Whether bytes of a purged tenant may still be in the file."""
    return _read_number(index, "PRAGMA application_id") != 0
