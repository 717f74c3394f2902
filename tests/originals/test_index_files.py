import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.originals.file_locks import FileLocks
from gateway.originals.index_file import add_messages, find_lists, note_list
from gateway.originals.index_files import IndexBounds, IndexDamaged, IndexFiles, is_indexed_name
from tests.originals.test_index_file import message

_WIDE = IndexBounds(1 << 30, 1 << 30)


def fill(files: IndexFiles, tag: str, conversation: str, size: int = 1, expires: float = 100.0) -> None:
    with files.writing(tag, conversation) as index:
        add_messages(index, [message(at, f"word{at} " * 50, expires) for at in range(size)])


def count(files: IndexFiles, tag: str, conversation: str) -> int | None:
    """None if there is no file."""
    with files.reading(tag, conversation) as index:
        if index is None:
            return None
        (messages,) = index.execute("SELECT count(*) FROM messages").fetchone()
        return int(messages)


def use_at(directory: Path, tag: str, conversation: str, seconds: float) -> None:
    os.utime(directory / tag / f"{conversation}.sqlite", (seconds, seconds))


def test_directories_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    fill(IndexFiles(tmp_path / "search", _WIDE), "aa", "c")
    paths = [tmp_path / "search", *(tmp_path / "search").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o700, 0o600}


def test_a_conversation_that_was_never_written_has_no_file(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path / "search", _WIDE)
    assert count(files, "aa", "c") is None and files.find_identity("aa", "c") == 0
    assert not (tmp_path / "search").exists()
    fill(files, "aa", "c")
    assert count(files, "aa", "c") == 1 and files.find_identity("aa", "c") != 0
    assert count(files, "aa", "d") is None and count(files, "bb", "c") is None


@pytest.mark.parametrize("name", ["", "../c", "a/b", "a.b", "*", "a\0", "c\n", "x" * 129, "é"])
def test_a_name_cannot_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    files = IndexFiles(tmp_path / "search", _WIDE)
    fill(files, "aa", "c")
    assert not is_indexed_name(name)
    assert count(files, "aa", name) is None and count(files, name, "c") is None
    with pytest.raises(OSError):
        fill(files, "aa", name)
    files.delete("aa", name)
    assert count(files, "aa", "c") == 1


@pytest.mark.parametrize("damage", ["text", "cut", "zeros", "version", "empty"])
def test_a_damaged_file_is_deleted_and_made_again(tmp_path: Path, damage: str) -> None:
    files = IndexFiles(tmp_path, _WIDE)
    fill(files, "aa", "c", size=50)
    path = tmp_path / "aa" / "c.sqlite"
    whole = path.read_bytes()
    changed = {
        "text": b"no database at all" * 500,
        "cut": whole[: len(whole) // 2],
        "zeros": whole[:4096] + bytes(len(whole) - 4096),
        "empty": b"",
    }
    if damage == "version":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version=77")
        connection.close()
    else:
        path.write_bytes(changed[damage])
    try:
        left = count(files, "aa", "c")
    except IndexDamaged:
        left = None
        assert not path.exists()
    assert not left
    fill(files, "aa", "c")
    assert count(files, "aa", "c") == 1


def test_deleted_directories_are_made_again(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path / "search", _WIDE)
    fill(files, "aa", "c")
    shutil.rmtree(tmp_path / "search")
    assert count(files, "aa", "c") is None
    fill(files, "aa", "c")
    assert count(files, "aa", "c") == 1


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path, _WIDE)
    for number, conversation in enumerate("abcd"):
        fill(files, "aa", conversation, size=100)
        use_at(tmp_path, "aa", conversation, 1_000.0 + number)
    assert count(files, "aa", "a") == 100  # this is a use
    size = (tmp_path / "aa" / "a.sqlite").stat().st_size
    bounded = IndexFiles(tmp_path, IndexBounds(int(2.5 * size), 1 << 30))
    bounded.trim(("aa", "d"))
    assert [count(files, "aa", each) for each in "abcd"] == [100, None, None, 100]


def test_one_tenant_does_not_displace_another(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path, _WIDE)
    for number, conversation in enumerate("abc"):
        fill(files, "aa", conversation, size=100)
        use_at(tmp_path, "aa", conversation, 1_000.0 + number)
    fill(files, "bb", "old", size=100)
    use_at(tmp_path, "bb", "old", 1.0)
    size = (tmp_path / "aa" / "a.sqlite").stat().st_size
    IndexFiles(tmp_path, IndexBounds(1 << 30, int(1.5 * size))).trim(("aa", "a"))
    assert [count(files, "aa", each) for each in "abc"] == [100, None, None]
    assert count(files, "bb", "old") == 100


def test_one_conversation_is_bounded_too(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path, IndexBounds(1 << 30, 400_000))
    path = tmp_path / "aa" / "c.sqlite"
    for start in range(0, 4_000, 100):
        with files.writing("aa", "c") as index:
            add_messages(index, [message(at, f"word{at} " * 20) for at in range(start, start + 100)])
        assert path.stat().st_size < 600_000
    with files.reading("aa", "c") as index:
        assert index is not None
        positions = [at for (at,) in index.execute("SELECT position FROM messages ORDER BY 1")]
    assert positions == list(range(positions[0], 4_000)) and positions[0] > 0


def test_a_sweep_deletes_what_has_expired(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path, _WIDE)
    fill(files, "aa", "gone", expires=50.0)
    fill(files, "aa", "mixed", size=2, expires=50.0)
    fill(files, "aa", "mixed", size=1, expires=90.0)
    use_at(tmp_path, "aa", "mixed", 1_000.0)
    files.sweep(60.0)
    assert (tmp_path / "aa" / "mixed.sqlite").stat().st_mtime == 1_000.0
    assert count(files, "aa", "gone") is None and count(files, "aa", "mixed") == 1


def test_a_tenant_is_deleted_with_all_conversations(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path, _WIDE)
    for tag, conversation in (("aa", "c"), ("aa", "d"), ("bb", "c")):
        fill(files, tag, conversation)
    files.delete("bb", "d")
    files.delete_tenant("aa")
    assert [count(files, "aa", "c"), count(files, "aa", "d"), count(files, "bb", "c")] == [None, None, 1]
    assert not (tmp_path / "aa").exists()


def test_a_private_directory_goes_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = (
        "import os\nfrom gateway.originals.index_files import *\n"
        "files = IndexFiles(None, IndexBounds(9, 9))\n"
        "with files.writing('aa', 'c'): pass\n"
        "os._exit(9)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 9
    (abandoned,) = tmp_path.iterdir()
    one, other = IndexFiles(None, _WIDE), IndexFiles(None, _WIDE)
    fill(one, "aa", "c")
    fill(other, "aa", "c")
    assert abandoned not in tmp_path.iterdir() and len(list(tmp_path.iterdir())) == 2
    one.close()
    assert count(other, "aa", "c") == 1
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_write_and_delete_one_file(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom gateway.originals.index_files import *\n"
        "from gateway.originals.index_file import note_list\n"
        "files = IndexFiles(Path(sys.argv[1]), IndexBounds(1 << 30, 1 << 30))\n"
        "for number in range(60):\n"
        "    with files.writing('aa', 'c') as index: note_list(index, f'{sys.argv[2]}{number}')\n"
        "    if number % 20 == 10: files.delete('aa', 'c')\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name]) for name in ("x", "y")
    ]
    assert [process.wait() for process in processes] == [0, 0]
    files = IndexFiles(tmp_path, _WIDE)
    with files.writing("aa", "c") as index:
        note_list(index, "end")
        assert index.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        places = find_lists(index)
    # The one that ends last writes these behind all deletions of both.
    ends = [{f"{name}{number}" for number in range(51, 60)} for name in "xy"]
    assert any(end <= places for end in ends) and "end" in places


def test_a_file_that_cannot_be_deleted_keeps_none_of_the_tenants_others(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path / "search", _WIDE)
    for at in range(5):
        fill(files, "aa", f"c{at}")
        (tmp_path / "search" / "aa" / f"d{at}.sqlite").mkdir()
    assert files.delete_tenant("aa") == 5
    assert {path.name[0] for path in (tmp_path / "search" / "aa").iterdir()} == {"d"}


@pytest.mark.parametrize("way", ["sweep", "write"])
def test_what_was_left_goes_with_the_next_sweep_or_write_of_any_process(tmp_path: Path, way: str) -> None:
    fill(IndexFiles(tmp_path, _WIDE), "aa", "c", size=3)
    with FileLocks(tmp_path / "locks").exclusive("c.sqlite"):
        assert IndexFiles(tmp_path, _WIDE, lock_seconds=0.0).delete("aa", "c") == 1
    files = IndexFiles(tmp_path, _WIDE)
    assert count(files, "aa", "c") is None
    if way == "sweep":
        files.sweep(1.0)
        assert not (tmp_path / "aa").exists()
    else:
        fill(files, "aa", "c")
        assert count(files, "aa", "c") == 1


def test_the_folder_of_a_deleted_tenant_goes(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path, _WIDE)
    fill(files, "aa", "c")
    fill(files, "bb", "c")
    assert files.delete_tenant("aa") == 0
    assert not (tmp_path / "aa").exists() and count(files, "bb", "c") == 1
