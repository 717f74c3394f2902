"""What other processes, or earlier versions, have archived is found by the next search."""

import zlib
from collections.abc import Sequence
from pathlib import Path

from gateway.core.policy import Policy
from gateway.originals.archive import OriginalsArchive, make_list_prefix, make_newest_key
from gateway.originals.index import OriginalsIndex
from gateway.originals.search import Scope
from gateway.store.keys import make_key, make_tag
from gateway.store.memory import MemoryStore
from tests.builders.originals import make_search
from tests.originals.test_archive import compact, read_lists, talk

_TAG = make_tag("t")
_RECALLING = Policy(recall="auto")


class CountingStore(MemoryStore):
    """Counts scans, and the originals that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = self.originals = 0

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        self.scans += 1
        return await super().scan(prefix)

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[tuple[str, bytes] | None]:
        self.originals += len(groups)
        return await super().read_groups(groups)


def damage_only_file(directory: Path, damage: bytes | None) -> None:
    """damage: in place of what the file holds; None: it is deleted."""
    (path,) = directory.rglob("*.sqlite")
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)


async def find(search: OriginalsIndex, query: str, conversation: str = "c") -> list[int]:
    return sorted(piece.position for piece in await search.search(_TAG, [Scope(conversation)], query))


async def test_lists_of_another_process_are_found_and_read_once(tmp_path: Path) -> None:
    store = CountingStore()
    await store.open()
    there, here = OriginalsArchive(store, 60), make_search(store, tmp_path)
    assert await find(here, "did") == []
    compact(there, talk(9), 1, 5)
    await there.finish()
    assert await find(here, "did") == [1, 3]
    scans, originals = store.scans, store.originals
    assert originals == 4
    for _ in range(3):
        assert await find(here, "did") == [1, 3]
    assert (store.scans, store.originals) == (scans, originals)
    compact(there, talk(13), 5, 7)
    await there.finish()
    assert await find(here, "did") == [1, 3, 5]
    assert (store.scans, store.originals) == (scans + 1, originals + 2)
    await here.close()


async def test_another_process_with_the_same_files_reads_nothing_again(tmp_path: Path) -> None:
    store = CountingStore()
    await store.open()
    one, other = make_search(store, tmp_path), make_search(store, tmp_path)
    archive = OriginalsArchive(store, 60, one.note_kept)
    compact(archive, talk(9, policy=_RECALLING), 1, 5)
    await archive.finish()
    await one.finish()
    assert await find(other, "did") == await find(one, "did") == [1, 3]
    assert store.originals == 0
    await one.close()
    await other.close()


async def test_a_file_that_is_gone_is_made_again(tmp_path: Path) -> None:
    store = CountingStore()
    await store.open()
    search = make_search(store, tmp_path)
    archive = OriginalsArchive(store, 60, search.note_kept)
    compact(archive, talk(9, policy=_RECALLING), 1, 5)
    await archive.finish()
    await search.finish()
    for damage in (None, b"damaged" * 2_000):
        damage_only_file(tmp_path, damage)
        assert await find(search, "did") == [1, 3]
    await search.close()


async def test_lists_of_the_version_before_are_found() -> None:
    store = CountingStore()
    await store.open()
    archive = OriginalsArchive(store, 60)
    compact(archive, talk(9), 1, 5)
    await archive.finish()
    (removed,) = await read_lists(archive)
    old = [f'[{each.position},{each.size_bytes},"{each.digest}"]' for each in removed.originals]
    begin = f'{{"version":1,"owner":"t","created_seconds":{removed.created_seconds},"kind":"summary",'
    written = f'{begin}"originals":[{",".join(old)}]}}'
    ((key, _),) = await store.scan(make_list_prefix(_TAG, "c"))
    store.write(key, zlib.compress(written.encode()), keep_seconds=60)
    store.delete(make_newest_key(_TAG, "c"))
    search = make_search(store)
    assert await find(search, "did") == [1, 3]
    scans = store.scans
    assert await find(search, "did") == [1, 3] and store.scans == scans
    await search.close()


async def test_originals_that_are_gone_or_damaged_are_left_out() -> None:
    store = CountingStore()
    await store.open()
    archive = OriginalsArchive(store, 60)
    compact(archive, talk(9), 1, 5)
    await archive.finish()
    (removed,) = await read_lists(archive)
    store.delete(make_key(_TAG, "original", removed.originals[0].digest))
    store.write(make_key(_TAG, "original", removed.originals[1].digest), b"damaged", keep_seconds=60)
    search = make_search(store)
    assert await find(search, "did and 0 1") == [3, 4]
    await search.close()
