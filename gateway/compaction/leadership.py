"""One summary per branch at a time, over all processes that share the store.

The process that makes it holds the lease of the branch. The others wait until it is released, and use its
pivot. A process that another one has replaced, because it was paused for longer than its lease, cannot store
its pivot in the place of the other one: it uses that. Does not know how long a client waits.
"""

from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from gateway.compaction.job import EDITED, LOST, NOT_STORED, PAUSED, CompactionJob
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut, list_newer_keys, name_branch
from gateway.core.compaction.request import CompactionRequest, CompactionResult
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import Rejected
from gateway.state import State
from gateway.state.chain_places import ChainPlace
from gateway.state.single import LeaseLost, Work, WorkFailed
from gateway.store.interface import Unknown

# Another process makes the summary, and no client of this one waits for it.
ELSEWHERE: Final = Rejected("elsewhere", is_summarizer_fault=False)
# These failures say nothing about the calls of another process.
_OWN_FAILURES: Final = (PAUSED, NOT_STORED)


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
        making = _Making(self._state, self._job, wanted)
        try:
            result = await self._state.single.run(
                turn.owner,
                name_branch(situation.conversation, cut),
                making.make,
                also=making.find_newer if wanted.may_adopt else None,
                waits=lambda: workplace.is_awaited or request.is_resumed or not wanted.may_adopt,
                inside=workplace.enter,
            )
        except WorkFailed as failed:
            return CompactionResult(Rejected(failed.reason, is_summarizer_fault=False), 0)
        except LeaseLost:
            return CompactionResult(LOST, 0)
        return result if result is not None else CompactionResult(ELSEWHERE, 0)


class _Making:
    def __init__(self, state: State, job: CompactionJob, wanted: Wanted) -> None:
        self._state = state
        self._job = job
        self._wanted = wanted

    async def make(self, work: Work) -> CompactionResult:
        """Raises LeaseLost if another process has taken over."""
        turn, situation, cut, request = self._wanted
        if cut.base is not None and await self._state.edits.has_changed(cut.base):
            return CompactionResult(EDITED, 0)
        place = ChainPlace(situation.conversation.chain[cut.covers].hex(), cut.covers)
        self._state.news.announce_place("compacting", turn.owner, place)
        try:
            result = await self._job.compact(turn, situation, cut, request, work)
        finally:
            self._state.news.announce_place("idle", turn.owner, place)
        if result.outcome is LOST:
            self._job.note_lost(turn, cut, request, result)
            raise LeaseLost
        if result.pivot is None and result.outcome not in _OWN_FAILURES:
            await work.note_failure(result.failure)
        return result

    async def find_newer(self) -> CompactionResult | None:
        """A pivot that makes this compaction needless, which another process may have made meanwhile, as if
        it were the one that was asked for: its client has waited for one call.

        A digest of the same messages does not: a client that could not wait got it, and the summary replaces
        it. Nor is a store waited for that is away: then this process is alone.
        """
        turn, situation, cut, _ = self._wanted
        try:
            newest = await self._state.pivots.load_newest(
                turn.owner, list_newer_keys(situation.conversation, cut)
            )
        except Unknown:
            return None
        own = situation.conversation.chain[cut.covers].hex()
        if newest is None or (newest.is_digest and newest.key == own):
            return None
        return CompactionResult(newest, 1)
