"""Records without a tag get other names, whole and with their time, and a crash in between loses none."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.store import StoreError
from gateway.store.disk import DiskStore
from gateway.store.keys import make_key, make_tag
from gateway.store.pending import Op
from gateway.store.renaming import has_untagged, rename_untagged
from gateway.store.volume import open_volume

_TAG = make_tag("tenant:a")
_KINDS = ("head", "pivot")


def rename(key: str, data: bytes) -> Sequence[tuple[str, bytes]]:
    kind, _, name = key.partition(":")
    return [(make_key(_TAG, kind, name), data)]


async def write(directory: Path, records: dict[str, bytes], keep_seconds: float = 60) -> None:
    store = DiskStore(directory)
    await store.open()
    for key, value in records.items():
        store.write(key, value, keep_seconds=keep_seconds)
    await store.close()


async def read(directory: Path, keys: Sequence[str]) -> list[bytes | None]:
    store = DiskStore(directory)
    await store.open()
    found = [await store.read(key) for key in keys]
    await store.close()
    return found


async def test_every_record_without_a_tag_is_renamed_and_no_other(tmp_path: Path) -> None:
    tagged = make_key(_TAG, "head", "ab")
    old = {f"head:{number:04x}": b"%d" % number for number in range(1_200)}
    await write(tmp_path, {tagged: b"tagged", **old})
    assert has_untagged(tmp_path, _KINDS)
    assert rename_untagged(tmp_path, rename) == 1_200
    assert not has_untagged(tmp_path, _KINDS)
    names = [make_key(_TAG, "head", key.partition(":")[2]) for key in old]
    assert await read(tmp_path, names) == list(old.values())
    assert await read(tmp_path, [tagged, "head:0000"]) == [b"tagged", None]


async def test_a_record_expires_when_it_would_have(tmp_path: Path) -> None:
    await write(tmp_path, {"pivot:ab": b"p"}, keep_seconds=500)
    rename_untagged(tmp_path, rename)
    volume = open_volume(tmp_path, lock_seconds=1)
    _, expires_at = volume.read_expiring(make_key(_TAG, "pivot", "ab"), time.time())
    volume.close()
    assert expires_at == pytest.approx(time.time() + 500, abs=60)


async def test_what_a_crash_left_is_done_by_the_next_call(tmp_path: Path) -> None:
    await write(tmp_path, {f"head:{number:04x}": b"h" for number in range(1_200)})
    calls = 0

    def crash(key: str, data: bytes) -> Sequence[tuple[str, bytes]]:
        nonlocal calls
        calls += 1
        if calls > 700:
            raise StoreError("the power is gone")
        return rename(key, data)

    with pytest.raises(StoreError):
        rename_untagged(tmp_path, crash)
    assert has_untagged(tmp_path, _KINDS)
    assert rename_untagged(tmp_path, rename) == 700
    names = [make_key(_TAG, "head", f"{number:04x}") for number in range(1_200)]
    assert await read(tmp_path, names) == [b"h"] * 1_200


async def test_what_an_earlier_version_wrote_later_replaces_what_was_renamed_before(tmp_path: Path) -> None:
    """After going back to it for a while."""
    await write(tmp_path, {make_key(_TAG, "head", "ab"): b"before", "head:ab": b"after"})
    rename_untagged(tmp_path, rename)
    assert await read(tmp_path, [make_key(_TAG, "head", "ab")]) == [b"after"]


async def test_a_damaged_record_is_dropped(tmp_path: Path) -> None:
    await write(tmp_path, {"head:ab": b"h"})
    volume = open_volume(tmp_path, lock_seconds=1)
    volume.write({"head:cd": Op(b"h", time.time() + 60)})
    volume.close()
    assert rename_untagged(tmp_path, lambda key, data: rename(key, data) if key == "head:cd" else []) == 2
    assert not has_untagged(tmp_path, _KINDS)
    found = await read(tmp_path, [make_key(_TAG, "head", name) for name in ("ab", "cd")])
    assert found == [None, b"h"]


def test_a_store_that_does_not_exist_has_none_and_is_not_made(tmp_path: Path) -> None:
    assert not has_untagged(tmp_path / "none", _KINDS)
    assert not (tmp_path / "none").exists()


async def test_kinds_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    await write(tmp_path, {"headline:ab": b"h"})
    assert not has_untagged(tmp_path, _KINDS)
