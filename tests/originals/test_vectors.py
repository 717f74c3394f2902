import sqlite3
from array import array
from pathlib import Path

import pytest

from gateway.originals.file_search import make_bound
from gateway.originals.index_file import add_messages, drop_expired, open_index
from gateway.originals.vectors import Unembedded, add_vectors, find_unembedded, rank_vectors
from tests.originals.test_index_file import message

requires_extensions = pytest.mark.skipif(
    not hasattr(sqlite3.Connection, "enable_load_extension"),
    reason="sqlite3 of this Python cannot load extensions",
)


def make(*numbers: float) -> bytes:
    return array("f", numbers).tobytes()


def test_pieces_without_a_vector_are_found_the_newest_first(tmp_path: Path) -> None:
    with open_index(tmp_path / "i") as index:
        add_messages(index, [message(at, f"text {at}") for at in range(5)])
        pieces = find_unembedded(index, "m", 3)
        assert [piece.text for piece in pieces] == ["text 4", "text 3", "text 2"]
        add_vectors(index, pieces, [make(1.0)] * 3, "m")
        assert [piece.text for piece in find_unembedded(index, "m", 3)] == ["text 1", "text 0"]
        assert [piece.text for piece in find_unembedded(index, "m", 3, pieces[-1].piece - 1)] == ["text 0"]


def test_another_model_begins_anew(tmp_path: Path) -> None:
    with open_index(tmp_path / "i") as index:
        add_messages(index, [message(at, f"text {at}") for at in range(3)])
        add_vectors(index, find_unembedded(index, "m", 9), [make(1.0)] * 3, "m")
        assert len(find_unembedded(index, "n", 9)) == 3
        add_vectors(index, find_unembedded(index, "n", 1), [make(1.0, 2.0)], "n")
        assert index.execute("SELECT count(*) FROM vectors").fetchone() == (1,)
        assert len(find_unembedded(index, "n", 9)) == 2


def test_a_piece_that_is_another_one_by_now_gets_no_vector(tmp_path: Path) -> None:
    with open_index(tmp_path / "i") as index:
        add_messages(index, [message(1, "text")])
        add_vectors(index, [Unembedded(1, "other"), Unembedded(9, "gone")], [make(1.0)] * 2, "m")
        assert index.execute("SELECT count(*) FROM vectors").fetchone() == (0,)


def test_vectors_expire_with_their_pieces(tmp_path: Path) -> None:
    with open_index(tmp_path / "i") as index:
        add_messages(index, [message(1, "one", 50.0), message(2, "two", 90.0)])
        add_vectors(index, find_unembedded(index, "m", 9), [make(2.0), make(1.0)], "m")
        drop_expired(index, 60.0)
        assert index.execute("SELECT vector FROM vectors").fetchall() == [(make(2.0),)]


@requires_extensions
def test_the_nearest_pieces_come_first(tmp_path: Path) -> None:
    with open_index(tmp_path / "i") as index:
        add_messages(index, [message(at, f"text {at}", 100.0 if at else 5.0) for at in range(4)])
        pieces = find_unembedded(index, "m", 9)
        vectors = {"text 0": make(1, 0), "text 1": make(0, 1), "text 2": make(1, 0.1), "text 3": make(1, 1)}
        add_vectors(index, pieces, [vectors[piece.text] for piece in pieces], "m")
        texts = {piece.piece: piece.text for piece in pieces}

        def rank(name: str, vector: bytes, before: int | None = None) -> list[str]:
            return [texts[at] for at in rank_vectors(index, name, vector, make_bound(before, 10.0), 9)]

        assert rank("m", make(1, 0)) == ["text 2", "text 3", "text 1"]
        assert rank("m", make(1, 0), 3) == ["text 2", "text 1"]
        assert rank("n", make(1, 0)) == rank("m", make(1, 0, 0)) == []
        with pytest.raises(sqlite3.OperationalError):
            index.execute("SELECT load_extension('x')")


def test_a_comparison_that_cannot_be_made_ranks_nothing(tmp_path: Path) -> None:
    with open_index(tmp_path / "i") as index:
        index.set_progress_handler(lambda: True, 1)
        assert rank_vectors(index, "m", make(1.0), make_bound(None, 1.0), 9) == []
