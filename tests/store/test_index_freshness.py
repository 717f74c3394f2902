"""A search finds what was archived before it, also while an earlier one is still reading the store."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gateway.originals.archive import Removals
from gateway.originals.removed import Original, RemovedMessages, fingerprint
from gateway.originals.search import OriginalsSearch, Scope
from gateway.store.blobs import Blobs, make_blobs
from gateway.store.interface import Unknown
from gateway.store.keys import make_tag
from gateway.store.sqlite import SqliteStore
from tests.builders.originals import make_search

_OWNER, _CONVERSATION = "tenant:one", "aa"
_TAG = make_tag(_OWNER)


class HeldStore(SqliteStore):
    """has_listed: lists were read. Those who read them get them once they are released. is_lost: it gives no
    original.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.has_listed, self.released = asyncio.Event(), asyncio.Event()
        self.is_lost = False

    async def get(self, *args: Any, **more: Any) -> Any:
        if self.is_lost:
            raise Unknown("away")
        return await super().get(*args, **more)

    async def list(self, *args: Any, **more: Any) -> Any:
        found = await super().list(*args, **more)
        self.has_listed.set()
        await self.released.wait()
        return found


@asynccontextmanager
async def open_search(
    clock: Callable[[], float] = lambda: 0.0,
) -> AsyncIterator[tuple[HeldStore, Blobs, OriginalsSearch]]:
    store = HeldStore()
    await store.open()
    blobs = make_blobs(store, None, "original", max_bytes=1 << 20, keep_seconds=60.0)
    index = make_search(Removals(store, 60.0), blobs, clock)
    yield store, blobs, index
    await index.close()
    await store.close()


async def archive(
    store: HeldStore, blobs: Blobs, position: int, text: str, created_seconds: float = 0.0
) -> None:
    raw = b'{"role":"user","content":"%s"}' % text.encode()
    digest = fingerprint(_OWNER, raw)
    await blobs.put(_TAG, _CONVERSATION, {digest: zlib.compress(raw)})
    removed = RemovedMessages(
        owner=_OWNER,
        created_seconds=created_seconds,
        kind="summary",
        originals=[Original(position, len(raw), digest)],
        format="chat",
    )
    name = f"{_CONVERSATION}/{position:08x}{int(created_seconds):08x}"
    Removals(store, 60.0).records.put(_OWNER, name, removed, group=_CONVERSATION, keep_seconds=60.0)


async def find(index: OriginalsSearch, query: str) -> list[int]:
    return [piece.position for piece in await index.search(_TAG, [Scope(_CONVERSATION)], query)]


async def test_what_is_archived_while_another_search_reads_is_found() -> None:
    async with open_search() as (store, blobs, index):
        await archive(store, blobs, 1, "an early canary")
        early = asyncio.create_task(find(index, "canary"))
        await store.has_listed.wait()
        await archive(store, blobs, 2, "a late hound")
        late = asyncio.create_task(find(index, "hound"))
        # So that it asks before the other one has an answer.
        await asyncio.sleep(0)
        index.note_kept(_TAG, _CONVERSATION, may_recall=True)
        store.released.set()
        assert (await early, await late) == ([1], [2])


async def test_what_is_archived_is_indexed_without_a_search_where_the_policy_recalls() -> None:
    async with open_search() as (store, blobs, index):
        store.released.set()
        await archive(store, blobs, 1, "an early canary")
        index.note_kept(_TAG, _CONVERSATION, may_recall=False)
        await index.finish()
        assert not store.has_listed.is_set()
        index.note_kept(_TAG, _CONVERSATION, may_recall=True)
        await index.finish()
        assert store.has_listed.is_set()
        store.is_lost = True
        assert await find(index, "canary") == [1]


async def test_what_the_store_has_no_more_is_not_found_whatever_the_index_holds() -> None:
    async with open_search() as (store, blobs, index):
        store.released.set()
        await archive(store, blobs, 1, "an early canary")
        assert await find(index, "canary") == [1]
        await store.delete(_TAG, _CONVERSATION)
        assert await find(index, "canary") == []


async def test_what_is_archived_once_more_is_found_for_longer() -> None:
    now = [0.0]
    async with open_search(lambda: now[0]) as (store, blobs, index):
        store.released.set()
        for now[0] in (0.0, 50.0):
            await archive(store, blobs, 1, "a canary", now[0])
            assert await find(index, "canary") == [1]
        now[0] = 100.0
        assert await find(index, "canary") == [1]
        now[0] = 111.0
        assert await find(index, "canary") == []
