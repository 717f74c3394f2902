"""Stores as the contract sees them: a place, and two processes there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from gateway.store.address import make_store
from gateway.store.interface import Found, HeldLease, Key, Lease, Lookup
from gateway.store.keys import make_tag
from gateway.store.queue import QueuedStore
from gateway.store.sqlite import SqliteStore
from tests.toy.redis_server import requires_redis

# "two": a folder of two processes.
KINDS: Final = ("memory", "disk", "two", pytest.param("redis", marks=requires_redis))
TAG: Final = make_tag("tenant")
OTHER_TAG: Final = make_tag("another tenant")


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.news: list[str] = []
        self.purges: list[tuple[str, str | None]] = []
        self.gaps = 0

    def on_news(self, tag: str, text: str) -> None:
        self.news.append(text)

    def on_purged(self, tag: str, group: str | None, number: int) -> None:
        self.purges.append((tag, group))

    def on_gap(self) -> None:
        self.gaps += 1


class Process(NamedTuple):
    """A store as one process has it, with what it hears."""

    store: QueuedStore
    heard: Heard

    async def get(self, *names: str, kind: str = "head", tag: str = TAG) -> bytes | None:
        """The first that exists. It waits as long as a busy machine needs."""
        (found,) = await self.store.get(tag, [Lookup(kind, names)], wait=10)
        return None if found is None else found.value

    async def find(self, *names: str) -> Found | None:
        (found,) = await self.store.get(TAG, [Lookup("head", names)], wait=10)
        return found

    async def keep(self, name: str, value: bytes = b"x", *, tag: str = TAG, group: str = "") -> None:
        stored = await self.store.put_durable(Key(tag, "head", name), value, 60, group=group, wait=10)
        assert stored == value

    async def lease(self, name: str = "branch", ttl: float = 30) -> Lease:
        claimed = await self.store.claim(TAG, name, ttl=ttl, wait=10)
        assert isinstance(claimed, Lease) and not claimed.is_alone
        return claimed

    async def find_holder(self, name: str = "branch") -> HeldLease:
        claimed = await self.store.claim(TAG, name, ttl=30, wait=10)
        assert isinstance(claimed, HeldLease)
        return claimed


class Place:
    """kind: one of KINDS. redis_url: of an empty server."""

    def __init__(self, kind: str, folder: Path, redis_url: str = "") -> None:
        self.is_shared = kind in ("two", "redis")
        self._url = {"memory": "memory:", "redis": redis_url}.get(kind, f"disk:{folder / 'store'}")

    @asynccontextmanager
    async def process(self) -> AsyncIterator[Process]:
        store = make_store(self._url)
        assert isinstance(store, QueuedStore)
        heard = Heard()
        store.subscribe(heard)
        await store.open()
        try:
            yield Process(store, heard)
        finally:
            await store.close()

    @asynccontextmanager
    async def two(self) -> AsyncIterator[tuple[Process, Process]]:
        """The same one twice where a place has only one process."""
        async with self.process() as one:
            if not self.is_shared:
                yield one, one
                return
            async with self.process() as other:
                yield one, other


@asynccontextmanager
async def opened(folder: Path | None, **options: Any) -> AsyncIterator[Process]:
    store = SqliteStore(folder, **options)
    heard = Heard()
    store.subscribe(heard)
    await store.open()
    try:
        yield Process(store, heard)
    finally:
        await store.close()


def head(name: str, tag: str = TAG) -> Key:
    return Key(tag, "head", name)
