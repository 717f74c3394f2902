"""What the server does for several workers at once: one of them gets a record, the first to write stays."""

import asyncio
from pathlib import Path

import pytest

from gateway.store import StoreError
from gateway.store.disk import DiskStore
from tests.store.served.serving import serving


async def test_services_answer_and_their_errors_arrive() -> None:
    async def double(request: bytes) -> bytes:
        if not request:
            raise StoreError("nothing to double")
        return request * 2

    async with serving(services={"double": double}) as served:
        store = await served.connect()
        assert await store.ask("double", b"ab") == b"abab"
        with pytest.raises(StoreError, match="nothing to double"):
            await store.ask("double", b"")
        with pytest.raises(StoreError, match="no service"):
            await store.ask("triple", b"a")


async def test_a_record_is_taken_by_one_of_many(tmp_path: Path) -> None:
    async with serving(DiskStore(tmp_path / "state", linger_seconds=0.01)) as served:
        stores = [await served.connect() for _ in range(8)]
        await stores[0].write_durably("marker:1", b"1", keep_seconds=60)
        taken = await asyncio.gather(*(store.take("marker:1") for store in stores))
        assert sorted(map(str, taken)) == [*["None"] * 7, "b'1'"]


async def test_of_many_new_records_the_first_stays(tmp_path: Path) -> None:
    async with serving(DiskStore(tmp_path / "state", linger_seconds=0.01)) as served:
        stores = [await served.connect() for _ in range(8)]
        stored = await asyncio.gather(
            *(store.write_new("pivot:1", b"%d" % n, keep_seconds=60) for n, store in enumerate(stores))
        )
        assert len(set(stored)) == 1
        assert await stores[3].read("pivot:1") == stored[0]
