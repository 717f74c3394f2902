"""One summary per chain at a time, over all processes that share the store.

The process that makes it is the leader: it holds a lease on the place of its cut and renews it. The others
wait until it is released, and use the leader's pivot. If the leader dies, its lease runs out and one of them
takes over. A leader that another one has replaced, because it was paused for longer than its lease, cannot
store its pivot any more: it throws its summary away and uses the other one.

If the store cannot be reached, every process is the leader of its own chains. With a store of one process
every lease is granted. Does not know how long a client waits.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from gateway.compaction.job import LOST, NOT_STORED, PAUSED, CompactionJob
from gateway.compaction.leader import Leader
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.request import CompactionRequest, CompactionResult
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import Rejected
from gateway.core.history.pivot import Pivot
from gateway.state import State
from gateway.store.leases import Held

# Another process makes the summary, and no client of this one waits for it.
ELSEWHERE: Final = Rejected("elsewhere", is_summarizer_fault=False)
# These failures say nothing about the calls of another process.
_OWN_FAILURES: Final = (PAUSED, NOT_STORED)
# A process that has lost so many leases for one compaction makes no more calls for it.
_MOST_LOST: Final = 2


class Workplace(Protocol):
    """What a compaction needs while it is made: its turn among the summaries, and memory for its copies."""

    @property
    def is_awaited(self) -> bool:
        """Whether a client waits for the compaction by now."""

    def enter(self) -> AbstractAsyncContextManager[None]:
        """More than once if the compaction waits for other processes in between. Then it is outside."""


class Wanted(NamedTuple):
    """A compaction that is to be made."""

    turn: Turn
    situation: Situation
    cut: Cut
    request: CompactionRequest

    @property
    def may_adopt(self) -> bool:
        """Whether the pivot of another process will do. It does not know a person's instructions."""
        return self.request.trigger == "auto"


class Leadership:
    def __init__(self, state: State, job: CompactionJob) -> None:
        self._state = state
        self._job = job

    async def compact(self, wanted: Wanted, workplace: Workplace) -> CompactionResult:
        """The result of the compaction, made here or by another process.

        In the background it does not wait for another process, unless the compaction was interrupted before.
        """
        turn, situation, cut, request = wanted
        if not self._job.may_start(turn):
            return await self._job.compact(turn, situation, cut, request)
        leader = Leader(self._state, turn.owner, situation.conversation, cut)
        lost = 0
        while lost < _MOST_LOST:
            async with workplace.enter():
                held = await leader.claim()
                result = await self._lead(leader, wanted) if held is None else None
            if held is None:
                lost += result is None
            elif wanted.may_adopt and not (workplace.is_awaited or wanted.request.is_resumed):
                return CompactionResult(ELSEWHERE, 0)
            else:
                result = await self._wait(leader, held, wanted)
            if result is not None:
                return result
        return CompactionResult(LOST, 0)

    async def _wait(self, leader: Leader, held: Held, wanted: Wanted) -> CompactionResult | None:
        """What came of the other process' compaction; None if this one has to claim the lease again."""
        await leader.wait(held)
        if not wanted.may_adopt:
            return None
        newer = await leader.find_newer()
        if newer is not None:
            return _adopt(newer)
        reason = await leader.find_failure(held)
        return CompactionResult(Rejected(reason, is_summarizer_fault=False), 0) if reason else None

    async def _lead(self, leader: Leader, wanted: Wanted) -> CompactionResult | None:
        """None if the lease was lost to another process."""
        try:
            newer = await leader.find_newer() if wanted.may_adopt else None
            return _adopt(newer) if newer is not None else await self._make(leader, wanted)
        finally:
            # Also if this process ends: the others take over at once.
            await leader.release()

    async def _make(self, leader: Leader, wanted: Wanted) -> CompactionResult | None:
        making = asyncio.create_task(self._job.compact(*wanted, leader.save))
        keeping = asyncio.create_task(leader.keep())
        try:
            await asyncio.wait((making, keeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (making, keeping):
                task.cancel()
            await asyncio.gather(making, keeping, return_exceptions=True)
        if making.cancelled() or making.result().outcome is LOST:
            if keeping.done() and not keeping.cancelled():
                keeping.result()
            made = making.result() if not making.cancelled() else None
            self._job.note_lost(wanted.turn, wanted.cut, wanted.request, made)
            return None
        result = making.result()
        if result.pivot is None and result.outcome not in _OWN_FAILURES:
            await leader.note_failure(result.failure)
        return result


def _adopt(pivot: Pivot) -> CompactionResult:
    """As if it were the one that was asked for: its client has waited for one call."""
    return CompactionResult(pivot, 1)
