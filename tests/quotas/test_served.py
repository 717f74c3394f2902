"""The same counts for all workers of a supervisor."""

import pytest

from gateway.quotas.meter import Rate
from gateway.quotas.served import SupervisedStore, make_served_backend
from gateway.store import StoreError
from gateway.store.memory import MemoryStore
from tests.builders.quotas import ToySupervisor

_RATE = Rate("quota:{tag}requests", 3, 3_600)


async def test_workers_count_together() -> None:
    supervisor = ToySupervisor()
    first, second = supervisor.connect(), supervisor.connect()
    assert await first.meter.count(_RATE, cost=2) == 0.0
    assert await second.meter.count(_RATE) == 0.0
    assert await first.meter.count(_RATE) > 0
    await second.meter.correct(_RATE, -1)
    assert await first.meter.count(_RATE) == 0.0


async def test_workers_share_places() -> None:
    supervisor = ToySupervisor()
    first, second = supervisor.connect().places, supervisor.connect().places
    assert await first.take("k", "a", 2)
    await second.renew({"k": ("b",)})
    assert not await first.take("k", "c", 2)
    await first.give_back({"k": ("b",)})
    assert await second.take("k", "c", 2)


async def test_without_the_supervisor_every_call_says_so() -> None:
    supervisor = ToySupervisor()
    backend = supervisor.connect()
    supervisor.is_away = True
    for call in (
        backend.meter.count(_RATE),
        backend.meter.correct(_RATE, 1),
        backend.places.take("k", "a", 1),
        backend.places.renew({"k": ["a"]}),
        backend.places.give_back({"k": ["a"]}),
    ):
        with pytest.raises(StoreError):
            await call


def test_only_the_store_of_a_worker_leads_to_a_supervisor() -> None:
    class StoreOfWorker(MemoryStore):
        async def ask(self, service: str, request: bytes) -> bytes:
            return await ToySupervisor().answer(request)

    assert isinstance(StoreOfWorker(), SupervisedStore)
    assert not isinstance(MemoryStore(), SupervisedStore)


async def test_a_reply_that_is_not_understood_is_like_none() -> None:
    async def answer(_: bytes) -> bytes:
        return b""

    backend = make_served_backend(answer)
    for call in (backend.meter.count(_RATE), backend.places.take("k", "a", 1)):
        with pytest.raises(StoreError):
            await call
