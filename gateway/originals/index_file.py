"""The index of one conversation: a file of SQLite with its originals in pieces, and two full-text indexes.

One knows the words of each piece. The other knows the words of the conversation by their runs of three
characters, so that a part of a name is found, too: an index of all runs of each piece took four times as long
to make. The file can always be made again from the store. Errors are those of `sqlite3`; one that says that
the file is damaged makes it worthless.
"""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from gateway.core.search.cutting import cut_text
from gateway.core.search.terms import find_indexed_words
from gateway.originals.parts import Part

# Grows with what the file holds, or how: a file with another number is made again.
VERSION: Final = 3
# SQLite's own waiting, beside the lock of the file (`file_locks`): for a program that looks into it.
_BUSY_SECONDS: Final = 1.0
_CACHE_KIBIBYTES: Final = 8_192
# A shorter word has no part that a query looks for.
_SHORTEST_PARTED_CHARS: Final = 5
# vocabulary.pieces: how many hold the word, so that a search need not count.
_SCHEMA: Final = """
CREATE TABLE messages(
    id INTEGER PRIMARY KEY, position INTEGER NOT NULL, digest TEXT NOT NULL, role TEXT NOT NULL,
    time REAL NOT NULL, expires REAL NOT NULL, link TEXT NOT NULL, link_before TEXT NOT NULL,
    UNIQUE(digest, position, link)
);
CREATE INDEX by_position ON messages(position);
CREATE INDEX by_expiry ON messages(expires);
CREATE TABLE pieces(
    id INTEGER PRIMARY KEY, message INTEGER NOT NULL, start INTEGER NOT NULL, role TEXT NOT NULL, tool TEXT,
    path TEXT, text TEXT NOT NULL, extra TEXT NOT NULL
);
CREATE INDEX by_message ON pieces(message);
CREATE TABLE mentions(
    path TEXT NOT NULL, message INTEGER NOT NULL, PRIMARY KEY(path, message)
) WITHOUT ROWID;
CREATE TABLE vocabulary(id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE, pieces INTEGER NOT NULL);
CREATE TABLE lists(place TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(
    text, extra, content='pieces', content_rowid='id', tokenize="unicode61 remove_diacritics 2"
);
CREATE VIRTUAL TABLE grams USING fts5(
    word, content='vocabulary', content_rowid='id', tokenize='trigram', detail=none, columnsize=0
);
CREATE VIRTUAL TABLE frequencies USING fts5vocab(words, row);
"""


class IndexedMessage(NamedTuple):
    """What is put into an index. time: when it was taken out of what is sent, in Unix time, as `expires`.

    link, link_before: see `removed.Original`.
    """

    position: int
    digest: str
    time: float
    expires: float
    parts: Sequence[Part]
    link: str = ""
    link_before: str = ""


def find_obstacle() -> str | None:
    """Why this SQLite cannot search; None if it can."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            return f"SQLite {sqlite3.sqlite_version}: {error}"
    return None


@contextmanager
def open_index(path: Path) -> Iterator[sqlite3.Connection]:
    """Makes the file if it is absent, readable for its owner alone. Raises sqlite3.Error and OSError."""
    path.touch(mode=0o600, exist_ok=True)
    address = f"file:{quote(str(path))}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)) as index:
        index.execute(f"PRAGMA cache_size=-{_CACHE_KIBIBYTES}")
        # What is deleted leaves the file.
        index.execute("PRAGMA secure_delete=ON")
        index.execute("PRAGMA trusted_schema=OFF")
        (version,) = index.execute("PRAGMA user_version").fetchone()
        if version == 0:
            with changing(index):
                _make_tables(index)
        elif version != VERSION:
            raise sqlite3.DatabaseError("another version")
        limit_search(index, None)
        yield index


def add_messages(index: sqlite3.Connection, messages: Sequence[IndexedMessage]) -> None:
    """All or nothing. A message that is there is kept for the longer of both times."""
    with changing(index):
        counts = Counter[str]()
        for message in messages:
            _add_message(index, message, counts)
        _count_words(index, counts)


def limit_search(index: sqlite3.Connection, messages: Collection[int] | None) -> None:
    """Only these are found through this connection from now on (`is_searched` in SQL); None for all."""
    index.create_function("is_searched", 1, lambda message: messages is None or message in messages)


def note_list(index: sqlite3.Connection, place: str) -> None:
    """All messages of this list are in the index."""
    index.execute("INSERT OR IGNORE INTO lists VALUES (?)", (place,))


def find_lists(index: sqlite3.Connection) -> set[str]:
    return {place for (place,) in index.execute("SELECT place FROM lists")}


def drop_expired(index: sqlite3.Connection, now: float) -> int:
    """Deletes what has expired by now (Unix time). Returns how many messages are left."""
    with changing(index):
        gone = index.execute("SELECT id FROM messages WHERE expires <= ?", (now,)).fetchall()
        _drop(index, [message for (message,) in gone])
    if gone:
        _write_anew(index)
    (left,) = index.execute("SELECT count(*) FROM messages").fetchone()
    return int(left)


def drop_oldest(index: sqlite3.Connection, most_bytes: int) -> None:
    """Makes the file smaller than this, by what was put into it first."""
    (pages,) = index.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = index.execute("PRAGMA page_size").fetchone()
    (count,) = index.execute("SELECT count(*) FROM pieces").fetchone()
    excess = pages * page_bytes / most_bytes - 1
    if excess <= 0 or not count:
        return
    # A little more, so that the next message does not do this again.
    share = min(1.0, 1 - 0.85 / (1 + excess))
    with changing(index):
        found = index.execute(
            "SELECT DISTINCT message FROM (SELECT message FROM pieces ORDER BY id LIMIT ?)",
            (int(count * share) + 1,),
        )
        _drop(index, [message for (message,) in found.fetchall()])
    _write_anew(index)


@contextmanager
def changing(index: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    index.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        index.execute("ROLLBACK")
        raise
    index.execute("COMMIT")


def _make_tables(index: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";\n"):
        index.execute(statement)
    index.execute(f"PRAGMA user_version={VERSION}")


def _add_message(index: sqlite3.Connection, message: IndexedMessage, counts: Counter[str]) -> None:
    known = index.execute(
        "UPDATE messages SET expires = max(expires, ?) WHERE digest = ? AND position = ? AND link = ?",
        (message.expires, message.digest, message.position, message.link),
    )
    if known.rowcount:
        return
    role = message.parts[0].role if message.parts else ""
    links = (message.link, message.link_before)
    row = (message.position, message.digest, role, message.time, message.expires, *links)
    number = index.execute(
        "INSERT INTO messages(position, digest, role, time, expires, link, link_before) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        row,
    ).lastrowid
    assert number is not None
    for part in message.parts:
        _add_part(index, number, part, counts)


def _add_part(index: sqlite3.Connection, message: int, part: Part, counts: Counter[str]) -> None:
    for start, end in cut_text(part.text):
        text = part.text[start:end]
        words, more = find_indexed_words(text)
        counts.update(words)
        extra = " ".join(more)
        row = (message, part.start + start, part.role, part.tool, part.path, text, extra)
        piece = index.execute(
            "INSERT INTO pieces(message, start, role, tool, path, text, extra) VALUES (?, ?, ?, ?, ?, ?, ?)",
            row,
        ).lastrowid
        index.execute("INSERT INTO words(rowid, text, extra) VALUES (?, ?, ?)", (piece, text, extra))
    for path in part.paths:
        index.execute("INSERT OR IGNORE INTO mentions VALUES (?, ?)", (path, message))


def _count_words(index: sqlite3.Connection, counts: Counter[str]) -> None:
    for word, pieces in counts.items():
        known = index.execute("UPDATE vocabulary SET pieces = pieces + ? WHERE word = ?", (pieces, word))
        if not known.rowcount:
            added = index.execute("INSERT INTO vocabulary(word, pieces) VALUES (?, ?)", (word, pieces))
            if len(word) >= _SHORTEST_PARTED_CHARS:
                index.execute("INSERT INTO grams(rowid, word) VALUES (?, ?)", (added.lastrowid, word))


def _drop(index: sqlite3.Connection, messages: Sequence[int]) -> None:
    for message in messages:
        found = index.execute("SELECT id, text, extra FROM pieces WHERE message = ?", (message,)).fetchall()
        for piece, text, extra in found:
            index.execute(
                "INSERT INTO words(words, rowid, text, extra) VALUES ('delete', ?, ?, ?)",
                (piece, text, extra),
            )
        index.execute("DELETE FROM pieces WHERE message = ?", (message,))
        index.execute("DELETE FROM mentions WHERE message = ?", (message,))
        index.execute("DELETE FROM messages WHERE id = ?", (message,))


def _write_anew(index: sqlite3.Connection) -> None:
    """What was deleted leaves the full-text indexes, which only mark it, and then the file."""
    with changing(index):
        # Of earlier versions: numbers made from the texts. Nothing reads them.
        index.execute("DROP TABLE IF EXISTS vectors")
        index.execute("DELETE FROM vocabulary")
        index.execute("INSERT INTO vocabulary(word, pieces) SELECT term, doc FROM frequencies")
        index.execute("INSERT INTO grams(grams) VALUES ('rebuild')")
        index.execute("INSERT INTO words(words) VALUES ('optimize')")
    index.execute("VACUUM")
