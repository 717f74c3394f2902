"""Compactions in progress: found on their chain by their own tenant, and dropped when they end."""

import asyncio
from typing import Any

from gateway.bounds.slots import Slots
from gateway.compaction.running import ManualRun, RunningCompaction, RunningCompactions, RunningDigest
from gateway.core.compaction.manual import ManualOutcome, NothingToCompact
from gateway.core.compaction.request import CompactionResult
from gateway.core.compaction.summary import Rejected
from gateway.store.keys import make_tag
from tests.builders.chat import converse
from tests.builders.compaction import talk

_RESULT = CompactionResult(Rejected("toy"), 1)


async def _compact(gate: asyncio.Event) -> CompactionResult:
    await gate.wait()
    return _RESULT


async def test_a_compaction_is_found_on_its_chain_until_it_ends() -> None:
    running, gate = RunningCompactions(Slots(1, 1)), asyncio.Event()
    conversation = converse(talk(3))
    other = converse([{"role": "user", "content": "Another."}, *talk(3)])
    place = running.slots.place("t", is_awaited=True)
    task = asyncio.create_task(_compact(gate))
    running.add(RunningCompaction("t", "c", conversation.chain[2].hex(), 2, place, task))
    found = running.find_on_chain("t", conversation)
    assert found is not None and found.task is task
    assert running.find_on_chain("t", other) is None
    assert running.find_on_chain("u", conversation) is None
    gate.set()
    assert await task is _RESULT
    assert running.find_on_chain("t", conversation) is None


async def test_digests_and_manual_compactions_are_dropped_when_they_end() -> None:
    running, gate = RunningCompactions(Slots(1, 1)), asyncio.Event()

    async def digest() -> bool:
        return await gate.wait()

    async def run() -> ManualOutcome:
        await gate.wait()
        return NothingToCompact()

    digesting, by_hand = asyncio.create_task(digest()), asyncio.create_task(run())
    running.add_digest("ab", RunningDigest("c", digesting))
    running.add_manual("c", ManualRun("cd", by_hand))
    assert running.find_digest("ab") is digesting
    assert running.find_manual("c") == ManualRun("cd", by_hand)
    gate.set()
    await asyncio.gather(digesting, by_hand)
    assert running.find_digest("ab") is None
    assert running.find_manual("c") is None


async def test_what_is_made_for_a_tenant_that_is_purged_is_cancelled() -> None:
    running, gate = RunningCompactions(Slots(2, 2)), asyncio.Event()
    conversation = converse(talk(3))
    tasks = {}
    for covers, owner in ((1, "t"), (2, "u")):
        tasks[owner] = asyncio.create_task(_compact(gate))
        place = running.slots.place(owner, is_awaited=True)
        key = conversation.chain[covers].hex()
        running.add(RunningCompaction(owner, "c", key, covers, place, tasks[owner]))
    running.cancel(make_tag("t"))
    await asyncio.wait((tasks["t"],))
    assert tasks["t"].cancelled() and not tasks["u"].done()
    gate.set()
    assert await tasks["u"] is _RESULT


async def test_what_is_made_for_a_deleted_conversation_is_cancelled() -> None:
    running, gate = RunningCompactions(Slots(2, 2)), asyncio.Event()

    async def digest() -> bool:
        return await gate.wait()

    async def run() -> ManualOutcome:
        await gate.wait()
        return NothingToCompact()

    gone: list[asyncio.Task[Any]] = []
    stays: list[asyncio.Task[Any]] = []
    for name, tasks in (("c", gone), ("d", stays)):
        compacting = asyncio.create_task(_compact(gate))
        digesting, by_hand = asyncio.create_task(digest()), asyncio.create_task(run())
        place = running.slots.place("t", is_awaited=True)
        running.add(RunningCompaction("t", name, name, 2, place, compacting))
        running.add_digest(name, RunningDigest(name, digesting))
        running.add_manual(name, ManualRun(name, by_hand))
        tasks += [compacting, digesting, by_hand]
    running.cancel_conversation("c")
    await asyncio.wait(gone)
    assert all(task.cancelled() for task in gone)
    assert not any(task.done() for task in stays)
    gate.set()
    await asyncio.gather(*stays)
