"""The search index over originals: one file of SQLite with those of all tenants in pieces, and a full-text
index of their words.

What is added and deleted together is a batch: some messages of one list of the archive (`removed`). Each
piece carries the name of its list as one more word. A question asks for the lists that may be seen together
with its words, so the full-text index itself passes over all others, and nothing of them counts. The file can
always be made again from the store. Errors are those of `sqlite3`,
and `Damaged`.
"""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from gateway.core.search.cutting import cut_text
from gateway.core.search.ranking import choose_best, score_pieces
from gateway.core.search.terms import QueryTerms, Term, find_extra_words, quote_term
from gateway.originals.parts import Part
from gateway.store.database import Damaged

# Grows with what the file holds, or how: a file with another number is made again. The files of earlier
# versions had 1 to 3.
_VERSION: Final = 4
# For another process that writes. A batch is added in some 100 ms.
_BUSY_SECONDS: Final = 2.0
_CACHE_KIBIBYTES: Final = 8_192
# Of a word that stands in more pieces, the newest count.
_MOST_MATCHES: Final = 1_500
# A word that stands in fewer pieces is looked for as the beginning of words, too.
_MOST_ALONE: Final = 10
_MOST_POSITIONS: Final = 20
# Other processes wait for so many pages.
_STEP_PAGES: Final = 256
# When there is too much, so much less is kept that the next batch does not begin it again.
_KEPT_SHARE: Final = 0.85
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
    text, extra, scope, content='pieces', content_rowid='id', tokenize="unicode61 remove_diacritics 2"
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
        number, scope = added.lastrowid, _name_scope(batch.tag, batch.list_name)
        for message in batch.messages:
            for part in message.parts:
                _add_part(index, number, scope, message.position, part)
        index.execute(
            "UPDATE batches SET pieces = (SELECT count(*) FROM pieces WHERE batch = batches.id) WHERE id = ?",
            (number,),
        )


def _name_scope(tag: str, list_name: str) -> str:
    """A word that no text can hold by chance; texts are not looked into for it anyway."""
    return "r" + hashlib.sha256(f"{tag}/{list_name}".encode()).hexdigest()[:24]


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
    index: sqlite3.Connection, tag: str, list_names: Sequence[str], terms: QueryTerms
) -> list[FoundRow]:
    """The best first. Only what the lists hold is seen, and counted."""
    scope = " OR ".join(_name_scope(tag, name) for name in list_names)

    def match(term: Term, beginning: str = "") -> list[int]:
        found = index.execute(
            "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?",
            (f"(scope : ({scope})) AND ({{text extra}} : {quote_term(term)}{beginning})", _MOST_MATCHES),
        )
        pieces = [piece for (piece,) in found]
        begins = term.may_begin_words and not beginning and len(pieces) < _MOST_ALONE
        return match(term, " *") if begins else pieces

    total = sum(batch.pieces for batch in _find_batches(index, tag, list_names))
    if not total:
        return []
    matches = {term: match(term) for term in terms}
    rows = {piece: _load_row(index, piece) for piece in choose_best(matches, total)}
    ranked = score_pieces({piece: f"{row.text} {row.extra}" for piece, row in rows.items()}, matches, total)
    return [rows[piece] for piece in ranked]


def _load_row(index: sqlite3.Connection, piece: int) -> FoundRow:
    row = index.execute(
        "SELECT list, position, start, role, tool, path, text, extra FROM pieces "
        "JOIN batches ON batches.id = batch WHERE pieces.id = ?",
        (piece,),
    ).fetchone()
    return FoundRow(*row)


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
    """Everything of a tenant, or of one conversation of it."""
    beginning = "" if conversation_id is None else f"{conversation_id}/"
    found = index.execute(
        "SELECT id FROM batches WHERE (tag = ? AND substr(list, 1, ?) = ?) OR tag = ''",
        (tag, len(beginning), beginning),
    )
    _drop(index, [batch for (batch,) in found.fetchall()])


def drop_expired(index: sqlite3.Connection, now: float) -> None:
    """now: Unix time."""
    found = index.execute("SELECT id FROM batches WHERE expires <= ?", (now,)).fetchall()
    _drop(index, [batch for (batch,) in found])


def drop_excess(index: sqlite3.Connection, bounds: IndexBounds) -> None:
    """Makes the bounds hold: the newest stay, as far as they fit, of each tenant and of all."""
    while (size := _measure(index)) > min(bounds):
        found = index.execute("SELECT id, tag, pieces FROM batches ORDER BY id DESC").fetchall()
        total = sum(pieces for _, _, pieces in found)
        if not total or not _list_excess(found, bounds, size / total):
            return
        _drop(index, _list_excess(found, bounds, size / total / _KEPT_SHARE))


def _measure(index: sqlite3.Connection) -> int:
    """In bytes."""
    return _read_number(index, "PRAGMA page_count") * _read_number(index, "PRAGMA page_size")


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


def _drop(index: sqlite3.Connection, batches: Sequence[int]) -> None:
    for batch in batches:
        with _changing(index):
            index.execute(
                "INSERT INTO words(words, rowid, text, extra, scope) "
                "SELECT 'delete', id, text, extra, scope FROM pieces WHERE batch = ?",
                (batch,),
            )
            index.execute("DELETE FROM pieces WHERE batch = ?", (batch,))
            index.execute("DELETE FROM mentions WHERE batch = ?", (batch,))
            # It stays without an owner until its words are gone, so that this is tried again if it fails.
            index.execute(
                "UPDATE batches SET tag = '', list = id, expires = 0, pieces = 0 WHERE id = ?", (batch,)
            )
    if batches:
        _let_words_go(index)
        index.execute("DELETE FROM batches WHERE tag = ''")


def _let_words_go(index: sqlite3.Connection) -> None:
    """What was deleted leaves the full-text index, which only marks it, and then the file: in steps, so that
    no other process waits for long.
    """
    merge, pages = "INSERT INTO words(words, rank) VALUES ('merge', ?)", -_STEP_PAGES
    changes = index.total_changes
    while True:
        index.execute(merge, (pages,))
        # https://www.sqlite.org/fts5.html, 6.7: a step that has nothing left to do makes one change.
        if pages > 0 and index.total_changes - changes < 2:
            break
        changes, pages = index.total_changes, _STEP_PAGES
    while _read_number(index, "PRAGMA freelist_count"):
        index.execute(f"PRAGMA incremental_vacuum({_STEP_PAGES})").fetchall()
