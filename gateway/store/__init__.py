"""Stores keep bytes under a key for a limited time, on disk or in memory.

They know nothing about the content. Keys are printable ASCII like `head:<hex>`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gateway.store.disk import DiskStore, choose_directory
from gateway.store.errors import StoreError
from gateway.store.memory import MemoryStore

__all__ = ["Store", "StoreError", "find_directory", "open_bounded_store", "open_store"]

# Without a disk, records that may be lost must not take much memory either.
_MAX_IN_MEMORY_BYTES = 32 << 20


class Store(Protocol):
    """The interface of every store. Reads do not raise: an absent, expired or damaged record is `None`."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Writes what is queued. Later writes do nothing."""

    async def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        """The first key of the sequence that exists, in one thread hop for all of them."""

    async def read(self, key: str) -> bytes | None: ...

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Every record whose key begins with `prefix`, in the order of the keys.

        On disk this takes time for each key that sorts behind the prefix.
        """

    def write(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        """Queued; a later write of the same key replaces it. Reads of this process see it at once."""

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        """Returns once committed. Raises StoreError if it cannot be committed."""

    def delete(self, key: str) -> None:
        """Queued, in order with the writes of the same key."""


def open_store(url: str) -> Store:
    """`disk:PATH` or `memory:`, not opened yet. Raises StoreError for any other form."""
    directory = find_directory(url)
    return MemoryStore() if directory is None else DiskStore(directory)


def open_bounded_store(url: str, name: str, max_bytes: int) -> Store:
    """Another store in the same place, for records that may be lost: beyond max_bytes the oldest go."""
    directory = find_directory(url)
    if directory is None:
        return MemoryStore(max_bytes=min(max_bytes, _MAX_IN_MEMORY_BYTES))
    return DiskStore(directory / name, max_bytes=max_bytes)


def find_directory(url: str) -> Path | None:
    """Where a store keeps its files; None for a store in memory. Raises StoreError."""
    scheme, _, rest = url.partition(":")
    if scheme == "memory" and not rest:
        return None
    if scheme == "disk" and rest:
        return choose_directory(Path(rest))
    if scheme in ("redis", "rediss"):
        raise StoreError("store: this build has no redis store yet; use disk:PATH or memory:")
    raise StoreError(f"store: {scheme or 'an empty value'!r} is not a store; use disk:PATH or memory:")
