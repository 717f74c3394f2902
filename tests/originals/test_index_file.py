import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.core.search.terms import find_terms
from gateway.originals.file_search import Sought, find_pieces, make_bound
from gateway.originals.index_file import (
    IndexedMessage,
    add_messages,
    drop_expired,
    drop_oldest,
    find_lists,
    find_missing,
    find_obstacle,
    note_list,
    open_index,
)
from gateway.originals.parts import Part


def message(position: int, text: str, expires: float = 100.0) -> IndexedMessage:
    part = Part(0, "user", "read", "a.py", text, ("a.py",))
    return IndexedMessage(position, f"d{position}", 1.0, expires, [part])


def find(path: Path, query: str, now: float = 0.0) -> list[int]:
    with open_index(path) as index:
        rows = find_pieces(index, make_bound(None, now), Sought(find_terms(query)), 10)
    return sorted(row.position for row in rows)


def fill(path: Path, messages: Sequence[IndexedMessage]) -> None:
    with open_index(path) as index:
        add_messages(index, messages)


def test_this_sqlite_can_search() -> None:
    assert find_obstacle() is None


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    fill(tmp_path / "i", [])
    assert stat.S_IMODE((tmp_path / "i").stat().st_mode) == 0o600


def test_adding_twice_changes_nothing_but_the_expiry(tmp_path: Path) -> None:
    path = tmp_path / "i"
    fill(path, [message(1, "alpha", 50.0), message(2, "beta", 50.0)])
    fill(path, [message(1, "alpha", 90.0), message(2, "beta", 20.0)])
    with open_index(path) as index:
        rows = index.execute("SELECT position, expires FROM messages ORDER BY 1").fetchall()
        assert rows == [(1, 90.0), (2, 50.0)]
        assert index.execute("SELECT count(*) FROM pieces").fetchone() == (2,)


def test_what_is_missing_is_told_by_position_digest_and_link(tmp_path: Path) -> None:
    fill(tmp_path / "i", [message(1, "alpha")])
    with open_index(tmp_path / "i") as index:
        assert find_missing(index, [(1, "d1", ""), (1, "d2", ""), (2, "d1", ""), (1, "d1", "l")]) == {
            (1, "d2", ""),
            (2, "d1", ""),
            (1, "d1", "l"),
        }
        note_list(index, "a")
        note_list(index, "a")
        assert find_lists(index) == {"a"}


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


def test_the_oldest_go_until_the_file_is_small_enough(tmp_path: Path) -> None:
    path = tmp_path / "i"
    for start in range(0, 60, 10):
        fill(path, [message(at, f"word{at} " + f"filler{at} " * 2_000) for at in range(start, start + 10)])
    most = path.stat().st_size // 2
    with open_index(path) as index:
        drop_oldest(index, most)
    assert path.stat().st_size <= most
    assert find(path, "word0") == [] and find(path, "word59") == [59]


@pytest.mark.parametrize("change", ["PRAGMA user_version=99", "DROP TABLE pieces"])
def test_a_file_of_another_form_is_an_error(tmp_path: Path, change: str) -> None:
    path = tmp_path / "i"
    fill(path, [message(1, "alpha")])
    with open_index(path) as index:
        index.execute(change)
    with pytest.raises(sqlite3.DatabaseError):
        fill(path, [message(2, "beta")])


def test_a_failure_in_between_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "i"
    fill(path, [message(1, "alpha")])
    broken = message(3, "gamma")._replace(digest=None)  # type: ignore[arg-type]
    with pytest.raises(sqlite3.IntegrityError):
        fill(path, [message(2, "beta"), broken])
    assert find(path, "alpha") == [1] and find(path, "beta") == []
