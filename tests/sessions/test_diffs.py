"""Diffs come back in the order of their messages, bounded, and only to their owner."""

import zlib

import msgspec

from gateway.core.session.work import FileChange
from gateway.sessions.diffs import (
    MOST_CHARS,
    DiffStore,
    StoredChanges,
    name_diff,
    pack_changes,
    unpack_changes,
)
from gateway.store.keys import make_tag
from tests.builders.state import make_store

_TAG = make_tag("t")


def change(position: int, diff: str = "@@\n-a\n+b\n", path: str = "/a") -> FileChange:
    return FileChange(position=position, path=path, kind="changed", additions=1, deletions=1, diff=diff)


async def test_changes_come_back_by_their_messages() -> None:
    changes = [change(1), change(1, path="/b"), change(12), change(300)]
    diffs = DiffStore(await make_store())
    await diffs.write(_TAG, "c", pack_changes("t", changes), 60)
    assert (await diffs.load(_TAG, "c", (1, 12, 300))).changes == changes
    assert (await diffs.load(_TAG, "c", (2, 12))).changes == [changes[2]]
    assert (await diffs.load(_TAG, "d", (1, 12))).changes == []
    diffs.delete(_TAG, "c", (1, 12))
    assert (await diffs.load(_TAG, "c", (1, 12, 300))).changes == [changes[3]]


async def test_an_answer_is_bounded_and_says_what_is_left_out() -> None:
    diffs, count = DiffStore(await make_store()), 200
    large = "+" * (MOST_CHARS // 50)
    for at in range(count):
        await diffs.write(_TAG, "c", pack_changes("t", [change(at, large)]), 60)
    found = await diffs.load(_TAG, "c", range(count))
    assert 50 <= len(found.changes) < 130
    assert found.left_off == count - len(found.changes)


async def test_damaged_records_and_those_of_others_are_left_out() -> None:
    store = await make_store()
    diffs = DiffStore(store)
    await diffs.write(_TAG, "c", pack_changes("u", [change(1, "CANARY")]), 60)
    for at, damage in enumerate((b"", b"\xff", zlib.compress(b"{}"), zlib.compress(b"[" * 9_999)), 2):
        store.write(name_diff(_TAG, "c", at), damage, keep_seconds=60)
    assert (await diffs.load(_TAG, "c", range(9))).changes == []


def test_a_record_that_would_fill_the_memory_is_not_unpacked() -> None:
    bomb = msgspec.json.encode(StoredChanges(owner="t", changes=(change(1, "a" * (20 << 20)),)))
    assert unpack_changes(zlib.compress(bomb)) is None
