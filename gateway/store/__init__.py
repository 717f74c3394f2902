"""Stores keep bytes under a key for a limited time, on disk, in memory or in Redis.

They know nothing about the content. Keys are printable ASCII, made by `make_key`.
"""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from gateway.store.disk import DiskStore, choose_directory
from gateway.store.errors import StoreError
from gateway.store.leases import Leases
from gateway.store.memory import MemoryStore
from gateway.store.news import News
from gateway.store.redis.address import FORM, Address, is_redis, parse_address

__all__ = ["Store", "StoreError", "find_directory", "open_bounded_store", "open_store"]

# Without a disk, records that may be lost must not take much memory either.
_MAX_IN_MEMORY_BYTES = 32 << 20


class Store(Protocol):
    """The interface of every store. Reads do not raise: an absent, expired or damaged record is `None`.

    The keys of one call have one tag, see `keys`.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other processes read and write it at the same time."""

    @property
    def leases(self) -> Leases: ...

    @property
    def news(self) -> News: ...

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Writes what is queued. Later writes do nothing."""

    async def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        """The first key of the sequence that exists, in one thread hop for all of them."""

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[tuple[str, bytes] | None]:
        """For each group what `read_first` gives, in one round trip for all of them."""

    async def read(self, key: str) -> bytes | None: ...

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Every record whose key begins with `prefix`, in the order of the keys.

        On disk this takes time for each key that sorts behind the prefix.
        """

    def write(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        """Queued; a later write of the same key replaces it. Reads of this process see it at once."""

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        """Returns once committed. Raises StoreError if it cannot be committed."""

    async def write_new(self, key: str, value: bytes, *, keep_seconds: float) -> bytes:
        """What the key stands for when this returns, durably: the value, or what was there before.

        Raises StoreError if it cannot be committed.
        """

    def delete(self, key: str) -> None:
        """Queued, in order with the writes of the same key."""

    async def take(self, key: str) -> bytes | None:
        """Reads and deletes a record. Of several processes one gets it."""

    async def purge(self, tag: str) -> int:
        """Deletes every record of this tag, and returns their number. Raises StoreError."""


def open_store(url: str) -> Store:
    """`disk:PATH`, `memory:` or `redis://HOST`, not opened yet. Raises StoreError for any other form."""
    if is_redis(url):
        address = _check_address(url)
        from gateway.store.redis.store import RedisStore  # not before its client library is known to be there

        return RedisStore(address)
    directory = find_directory(url)
    return MemoryStore() if directory is None else DiskStore(directory)


def open_bounded_store(url: str, name: str, max_bytes: int) -> Store:
    """Another store in the same place, for records that may be lost: beyond max_bytes the oldest go."""
    if is_redis(url):
        address = _check_address(url)
        from gateway.store.redis.bounded import BoundedRedisStore

        return BoundedRedisStore(address, name, max_bytes)
    directory = find_directory(url)
    if directory is None:
        return MemoryStore(max_bytes=min(max_bytes, _MAX_IN_MEMORY_BYTES))
    return DiskStore(directory / name, max_bytes=max_bytes)


def find_directory(url: str) -> Path | None:
    """Where a store keeps its files; None for a store in memory or on a server. Raises StoreError."""
    scheme, _, rest = url.partition(":")
    if (scheme == "memory" and not rest) or is_redis(url):
        return None
    if scheme == "disk" and rest:
        return choose_directory(Path(rest))
    raise StoreError(
        f"store: {scheme or 'an empty value'!r} is not a store; use disk:PATH or memory: or {FORM}"
    )


def _check_address(url: str) -> Address:
    """Raises StoreError if it cannot be used here, whatever the server says."""
    try:
        address = parse_address(url)
    except ValueError as error:
        raise StoreError(f"store: {error}") from error
    for name, path in address.files.items():
        if not os.access(path, os.R_OK):
            raise StoreError(f"store: {name} {path} cannot be read")
    if find_spec("redis") is None:
        raise StoreError("store: redis:// needs its client library: pip install 'refold[redis]'")
    return address
