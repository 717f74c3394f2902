import sqlite3
from pathlib import Path

import pytest

from gateway.originals.file_locks import FileLocks, LockHeld
from gateway.originals.index_files import IndexFiles
from gateway.originals.index_writer import IndexWriter
from gateway.originals.search import SearchFailed, SearchImpossible
from tests.originals.test_index_file import message
from tests.originals.test_index_files import _WIDE, count
from tests.toy.running import wait_until

_INDEXED = ("aa", "c")


async def test_what_was_read_before_something_was_forgotten_is_not_written(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path, _WIDE)
    writer = IndexWriter(files)
    before = writer.forgotten
    assert await writer.write(_INDEXED, before, lambda: [message(1, "alpha")])
    writer.delete(files.delete, *_INDEXED)
    assert not await writer.write(_INDEXED, before, lambda: [message(1, "alpha")])
    await writer.finish()
    assert count(files, *_INDEXED) is None
    assert await writer.write(_INDEXED, writer.forgotten, lambda: [message(1, "alpha")])
    await writer.close()
    assert not await writer.write(_INDEXED, writer.forgotten, lambda: [message(2, "beta")])
    with pytest.raises(SearchFailed):
        await writer.read(lambda: 1)


async def test_a_damaged_file_is_replaced_by_the_next_write(tmp_path: Path) -> None:
    files = IndexFiles(tmp_path, _WIDE)
    writer = IndexWriter(files)
    assert await writer.write(_INDEXED, 0, lambda: [message(1, "alpha")])
    (tmp_path / "aa" / "c.sqlite").write_bytes(b"damaged" * 1_000)
    assert await writer.write(_INDEXED, 0, lambda: [message(2, "beta")])
    assert count(files, *_INDEXED) == 1
    await writer.close()


async def test_a_disk_that_fails_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    writer = IndexWriter(IndexFiles(tmp_path / "file" / "search", _WIDE))
    for _ in range(3):
        assert not await writer.write(_INDEXED, 0, lambda: [message(1, "alpha")])
    await writer.close()
    assert caplog.text.count("originals cannot be searched") == 1


async def test_a_sqlite_without_full_text_search_is_logged_once_and_finds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gateway.originals.index_file._SCHEMA", "CREATE VIRTUAL TABLE words USING absent(text)"
    )
    writer = IndexWriter(IndexFiles(tmp_path, _WIDE))
    assert not await writer.check_usable() and not await writer.check_usable()
    with pytest.raises(SearchImpossible, match="no such module"):
        await writer.require_usable()
    assert not await writer.write(_INDEXED, 0, lambda: [message(1, "alpha")])
    await writer.close()
    assert caplog.text.count("no such module") == 1
    assert sqlite3.sqlite_version in caplog.text


async def test_what_is_locked_is_not_read_any_more_and_deleted_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = IndexFiles(tmp_path, _WIDE, lock_seconds=0.0)
    writer = IndexWriter(files, pauses_seconds=[0.0] * 1_000)
    for conversation in "cd":
        assert await writer.write(("aa", conversation), 0, lambda: [message(1, "alpha")])
    with FileLocks(tmp_path / "locks").exclusive("c.sqlite"):
        writer.delete(files.delete_tenant, "aa")
        await writer.finish()
        assert files.measure() > 0
        # Another process knows, too.
        other = IndexFiles(tmp_path, _WIDE)
        assert count(other, *_INDEXED) is None and other.find_identity(*_INDEXED) == 0
    await wait_until(lambda: not (tmp_path / "aa").exists())
    assert "could not be deleted yet: 1;" in caplog.text and "aa" not in caplog.text
    await writer.close()


async def test_each_kind_of_failure_is_logged_once_an_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times, errors = (
        [0.0],
        [OSError(28, "No space left on device", "/secret/name"), LockHeld("another holds it")],
    )
    writer = IndexWriter(IndexFiles(tmp_path, _WIDE), lambda: times[-1])

    def fail() -> None:
        raise errors[0]

    for seconds in (0.0, 10.0, 3_700.0):
        times.append(seconds)
        for _ in errors * 2:
            with pytest.raises(SearchFailed) as caught:
                await writer.read(fail)
            errors.reverse()
            assert "secret" not in str(caught.value)
    await writer.close()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4 and "secret" not in caplog.text
    assert [sum(why in line for line in lines) for why in ("No space left", "another holds it")] == [2, 2]
