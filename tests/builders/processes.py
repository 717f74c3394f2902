"""Processes that share a store and make compactions, each with a model of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from gateway.compaction.flow import Job
from gateway.conversations.reading import Received
from gateway.core.compaction.request import CompactionReason, CompactionRequest, CompactionResult
from gateway.core.history.pivot import Pivot
from gateway.state.single import LeaseTimes
from tests.builders.compaction import (
    CompactionParts,
    ModelReply,
    compaction_parts,
    make_cut,
    make_situation,
    receive,
    say,
    turn_of,
)
from tests.toy.running import wait_until
from tests.toy.shared_store import SharedStore, ToyServer

RECEIVED = receive(14)
AWAITED = CompactionRequest(reason=CompactionReason.HARD_THRESHOLD, is_awaited=True, calls=8)

Task = asyncio.Task[CompactionResult]


@dataclass
class Process:
    store: SharedStore
    parts: CompactionParts

    def start(
        self, received: Received = RECEIVED, request: CompactionRequest = AWAITED, covers: int = 9
    ) -> Task:
        return self.parts.compactions.start(
            Job(turn_of(received), make_situation(received), make_cut(covers), request)
        )

    async def start_calling(self, *, covers: int = 9, request: CompactionRequest = AWAITED) -> Task:
        """Until the model thinks about the summary."""
        self.parts.model.gate.clear()
        task = self.start(covers=covers, request=request)
        await wait_until(lambda: self.calls > 0)
        return task

    @property
    def calls(self) -> int:
        return len(self.parts.model.requests)

    def find(self, covers: int = 9) -> Pivot | None:
        return self.parts.state.pivots.find(RECEIVED.conversation.chain[covers].hex())


@dataclass
class Group:
    server: ToyServer
    one: Process
    other: Process

    async def wait_until_one_waits(self) -> None:
        await wait_until(lambda: self.server.count_waiting() == 1)


@asynccontextmanager
async def processes(
    *replies: ModelReply | Exception, times: LeaseTimes | None = None
) -> AsyncIterator[Group]:
    server = ToyServer()
    async with AsyncExitStack() as exits:
        opened = []
        for summary in ("By one.", "By another."):
            store = server.connect()
            await store.open()
            parts = compaction_parts(*(replies or (say(summary),)), store=store, lease_times=times)
            opened.append(Process(store, await exits.enter_async_context(parts)))
        yield Group(server, *opened)
