"""Which stores a gateway has, and where."""

from pathlib import Path

import pytest

from gateway.store import StoreError
from gateway.store.stores import make_stores


async def test_on_disk_each_store_has_its_directory(tmp_path: Path) -> None:
    stores = make_stores(f"disk:{tmp_path}/state", originals_bytes=1 << 20, named_bytes=1 << 20)
    await stores.open()
    for store in (stores.main, stores.originals, stores.named):
        await store.write_durably("head:a", b"1", keep_seconds=60)
    await stores.close()
    assert {path.name for path in (tmp_path / "state").iterdir() if path.is_dir()} == {"originals", "named"}


async def test_in_memory_the_stores_are_apart() -> None:
    stores = make_stores("memory:", originals_bytes=1 << 20, named_bytes=1 << 20)
    await stores.open()
    await stores.originals.write_durably("head:a", b"1", keep_seconds=60)
    assert await stores.main.read("head:a") is None
    # What is named is kept in memory once, by the caches.
    with pytest.raises(StoreError):
        await stores.named.write_durably("head:a", b"1", keep_seconds=60)
    await stores.close()


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(StoreError, match="not a store"):
        make_stores("tape:1", originals_bytes=1, named_bytes=1)
