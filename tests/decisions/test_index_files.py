"""Files of the index over originals: what has expired leaves them, and no name leads out of their folder."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.core.search.terms import find_terms
from gateway.originals.file_search import find_pieces, make_bound
from gateway.originals.index_file import IndexedMessage, add_messages, drop_expired, open_index
from gateway.originals.index_files import IndexBounds, IndexFiles, is_indexed_name
from gateway.originals.parts import Part

_WIDE = IndexBounds(1 << 30, 1 << 30)


def message(position: int, text: str, expires: float = 100.0) -> IndexedMessage:
    part = Part(0, "user", "read", "a.py", text, ("a.py",))
    return IndexedMessage(position, f"d{position}", 1.0, expires, [part])


def find(path: Path, query: str, now: float = 0.0) -> list[int]:
    with open_index(path) as index:
        rows = find_pieces(index, make_bound(None, now), find_terms(query), 10)
    return sorted(row.position for row in rows)


def fill(path: Path, messages: Sequence[IndexedMessage]) -> None:
    with open_index(path) as index:
        add_messages(index, messages)


def test_adding_twice_changes_nothing_but_the_expiry(tmp_path: Path) -> None:
    path = tmp_path / "i"
    fill(path, [message(1, "alpha", 50.0), message(2, "beta", 50.0)])
    fill(path, [message(1, "alpha", 90.0), message(2, "beta", 20.0)])
    with open_index(path) as index:
        rows = index.execute("SELECT position, expires FROM messages ORDER BY 1").fetchall()
        assert rows == [(1, 90.0), (2, 50.0)]
        assert index.execute("SELECT count(*) FROM pieces").fetchone() == (2,)


def test_what_expires_is_not_found_and_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "i"
    fill(path, [message(1, "kanarienvogel alpha", 50.0), message(2, "nachtigall alpha", 90.0)])
    assert find(path, "alpha", now=60.0) == [2]
    assert b"kanarienvogel" in path.read_bytes()
    with open_index(path) as index:
        assert drop_expired(index, 60.0) == 1
    data = path.read_bytes()
    assert b"kanarienvogel" not in data and b"kanarie" not in data
    assert find(path, "kanarienvogel") == [] and find(path, "nachtigall") == [2]
    with open_index(path) as index:
        assert drop_expired(index, 100.0) == 0


def index_at(files: IndexFiles, tag: str, conversation: str, size: int = 1, expires: float = 100.0) -> None:
    with files.writing(tag, conversation) as index:
        add_messages(index, [message(at, f"word{at} " * 50, expires) for at in range(size)])


def count(files: IndexFiles, tag: str, conversation: str) -> int | None:
    """None if there is no file."""
    with files.reading(tag, conversation) as index:
        if index is None:
            return None
        (messages,) = index.execute("SELECT count(*) FROM messages").fetchone()
        return int(messages)


@pytest.mark.parametrize("name", ["", "../c", "a/b", "a.b", "*", "a\0", "c\n", "x" * 129, "é"])
def test_a_name_cannot_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    files = IndexFiles(tmp_path / "search", _WIDE)
    index_at(files, "aa", "c")
    assert not is_indexed_name(name)
    assert count(files, "aa", name) is None and count(files, name, "c") is None
    with pytest.raises(OSError):
        index_at(files, "aa", name)
    files.delete("aa", name)
    assert count(files, "aa", "c") == 1


def test_a_sweep_deletes_what_has_expired(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path, _WIDE)
    index_at(files, "aa", "gone", 1, 50.0)
    index_at(files, "aa", "mixed", 2, 50.0)
    index_at(files, "aa", "mixed", 1, 90.0)
    files.sweep(60.0)
    assert count(files, "aa", "gone") is None and count(files, "aa", "mixed") == 1
