"""The vectors of pieces, in the file of their index, compared by sqlite-vec.

They are values of a plain table, so that a process without the extension can use the rest of the file.
"""

import sqlite3
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

_FOREVER: Final = 1 << 62


class Unembedded(NamedTuple):
    piece: int
    text: str


def use_model(index: sqlite3.Connection, name: str) -> None:
    """name: of the model that gives the vectors from now on. Those of another one are deleted."""
    known = index.execute("SELECT name FROM embedding").fetchone()
    if known != (name,):
        index.execute("DELETE FROM vectors")
        index.execute("DELETE FROM embedding")
        index.execute("INSERT INTO embedding VALUES (?)", (name,))


def find_unembedded(
    index: sqlite3.Connection, name: str, most: int, below: int | None = None
) -> list[Unembedded]:
    """The newest pieces without a vector of this model. below: only pieces with smaller numbers."""
    is_known = index.execute("SELECT 1 FROM embedding WHERE name = ?", (name,)).fetchone() is not None
    found = index.execute(
        "SELECT id, text FROM pieces WHERE id < ? AND (NOT ? OR id NOT IN (SELECT piece FROM vectors)) "
        "ORDER BY id DESC LIMIT ?",
        (_FOREVER if below is None else below, is_known, most),
    )
    return [Unembedded(*row) for row in found]


def add_vectors(
    index: sqlite3.Connection, pieces: Sequence[Unembedded], vectors: Sequence[bytes], name: str
) -> None:
    """A piece that is gone, or another one by now, gets none."""
    use_model(index, name)
    for piece, vector in zip(pieces, vectors, strict=True):
        index.execute(
            "INSERT OR REPLACE INTO vectors SELECT id, ? FROM pieces WHERE id = ? AND text = ?",
            (vector, piece.piece, piece.text),
        )


def rank_vectors(
    index: sqlite3.Connection, name: str, vector: bytes, bound: tuple[int, float], most: int
) -> list[int]:
    """The nearest pieces. Empty where there are none of this model, or where comparing takes too long.

    A Python that cannot compare has been warned of at the start. bound: see `file_search.Bound`.
    """
    try:
        load_extension(index)
        found = index.execute(
            "SELECT piece FROM vectors JOIN pieces ON pieces.id = piece "
            "JOIN messages ON messages.id = pieces.message "
            "WHERE position < ? AND expires > ? AND is_searched(messages.id) "
            "AND length(vector) = ? "
            "AND EXISTS (SELECT 1 FROM embedding WHERE name = ?) "
            "ORDER BY vec_distance_cosine(vector, ?) LIMIT ?",
            (*bound, len(vector), name, vector, most),
        )
        return [piece for (piece,) in found]
    except (sqlite3.OperationalError, AttributeError, ImportError):
        return []


def load_extension(connection: sqlite3.Connection) -> None:
    """Its settings have been checked: this Python can."""
    connection.enable_load_extension(True)
    try:
        import_module("sqlite_vec").load(connection)
    finally:
        connection.enable_load_extension(False)
