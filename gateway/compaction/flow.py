"""One compaction from top to bottom: queue, lease, make, check, store, report. Digests, too.

A text that fails its checks is never stored, and a pivot is durable before it is used. Tasks belong to the
process: a client that disconnects neither stops nor loses a summary. Over all processes that share the store
one summary of a branch is made at a time: that process holds the branch's lease, the others wait and use its
pivot, and one that was paused for longer than its lease cannot store its own in that place.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

from gateway.bounds.background import BackgroundTasks, Place, Slots
from gateway.bounds.memory import MemoryBudget, Share
from gateway.compaction.summarizer import Summarizer
from gateway.compaction.trimmers import SummaryLimiter
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut, list_newer_keys, name_branch
from gateway.core.compaction.decision import decide_after, find_ready_pivot
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import (
    CompactionReason,
    CompactionRequest,
    CompactionResult,
    find_reason,
)
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import OVER_BUDGET, Breaker, Rejected
from gateway.core.history.conversation import Conversation, find_open_group
from gateway.core.history.pivot import Pivot, is_on_chain
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.planning.planner import Planner
from gateway.reporting.reporter import Reporter
from gateway.state import State
from gateway.state.kinds import Marker
from gateway.state.news import ChainPlace
from gateway.state.single import LeaseLost, Work, WorkFailed
from gateway.store.interface import Lease, StoreError, Unknown, Unusable
from gateway.store.keys import make_tag

T = TypeVar("T")

# The turn, its messages as texts, and what a summarizer is sent.
_HELD_COPIES: Final = 3
_BREAKERS_BYTES: Final = 1 << 18
_BREAKER_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 300
PAUSED: Final = Rejected("paused", is_summarizer_fault=False)
NOT_STORED: Final = Rejected("store", is_summarizer_fault=False)
# Another process has taken over: its pivot is used.
LOST: Final = Rejected("lease lost", is_summarizer_fault=False)
# A person has edited what the summary was made from: what that text says must not be lost.
EDITED: Final = Rejected("edited meanwhile", is_summarizer_fault=False)
# Another process makes the summary, and no client of this one waits for it.
ELSEWHERE: Final = Rejected("elsewhere", is_summarizer_fault=False)
# These failures say nothing about the calls of another process.
_OWN_FAILURES: Final = (PAUSED, NOT_STORED)


class Job(NamedTuple):
    """A summary or a digest that is wanted."""

    turn: Turn
    situation: Situation
    cut: Cut
    request: CompactionRequest

    @property
    def key(self) -> str:
        """Of its pivot: the chain up to the cut."""
        return self.situation.conversation.chain[self.cut.covers].hex()

    @property
    def is_manual(self) -> bool:
        return self.request.trigger == "manual"


@dataclass(frozen=True, slots=True, eq=False)
class RunningTask:
    """Work under way. key: of the chain up to its cut, or of the request that asked by hand."""

    kind: Literal["summary", "digest", "manual"]
    owner: str
    conversation_id: str
    key: str
    task: "asyncio.Task[Any]"
    covers: int = 0
    place: Place | None = None


class Running:
    """What is under way for as long as the process lives, whatever settings hold.

    After a reload, requests under way finish on the old settings while new ones come. Both find here what is
    being made already, so that a chain has one compaction at a time. memory: of all bodies under way.
    Background tasks hold theirs beyond the response.
    """

    def __init__(self, slots: Slots, memory: MemoryBudget) -> None:
        self.slots = slots
        self.memory = memory
        self.tasks = BackgroundTasks("background task")
        self.limiter = SummaryLimiter()
        self._under_way: list[RunningTask] = []

    def spawn(self, work: Coroutine[Any, Any, T], share: Share | None = None) -> "asyncio.Task[T]":
        """Runs work in a task that outlives its request. If the gateway stops meanwhile, its marker stays, so
        the next request of the chain starts it again.

        share: of the memory; it is given back when the work is done.
        """
        task = self.tasks.spawn(work)
        if share is not None:
            task.add_done_callback(lambda _: share.shrink(share.size_bytes))
        return task

    def hold(self, turn: Turn) -> Share:
        """A share for work that has to be done, whether there is room or not: others wait for longer then."""
        share = self.memory.open(turn.owner)
        share.take(count_held(turn))
        return share

    def add(self, running: RunningTask) -> None:
        """Until its task ends."""
        self._under_way.append(running)
        running.task.add_done_callback(lambda _: self._under_way.remove(running))

    def find_summary(self, owner: str, conversation: Conversation) -> RunningTask | None:
        """The compaction of this chain, whatever it will cover."""
        return self._find(
            "summary",
            lambda each: each.owner == owner and is_on_chain(conversation, each.key, each.covers),
        )

    def find_digest(self, key: str) -> RunningTask | None:
        return self._find("digest", lambda each: each.key == key)

    def find_manual(self, conversation_id: str) -> RunningTask | None:
        """Each conversation has at most one compaction by hand."""
        return self._find("manual", lambda each: each.conversation_id == conversation_id)

    def _find(self, kind: str, fits: Callable[[RunningTask], bool]) -> RunningTask | None:
        # The outcome of a task that is done is known to those who waited for it.
        of_kind = (each for each in self._under_way if each.kind == kind and not each.task.done())
        return next(filter(fits, of_kind), None)

    def cancel(self, tag: str, conversation_id: str | None = None) -> None:
        """What is being made is not needed any more: summaries of a tenant, or all of one conversation."""
        for each in self._under_way:
            is_of_tenant = each.kind == "summary" and make_tag(each.owner) == tag
            if is_of_tenant if conversation_id is None else each.conversation_id == conversation_id:
                each.task.cancel()
        if conversation_id is None:
            self.limiter = SummaryLimiter()


class Compactions:
    """Of one set of settings. clock: seconds that never go back."""

    def __init__(
        self,
        state: State,
        planner: Planner,
        summarizer: Summarizer,
        reporter: Reporter,
        running: Running,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running = running
        self._state = state
        self._planner = planner
        self._summarizer = summarizer
        self._pivots = summarizer.pivots
        self._reporter = reporter
        self._clock = clock
        # Each tenant has one for each upstream. Each process counts the failures of its own calls: a
        # summarizer that does not respond is tried by each of them.
        self._breakers: Lru[tuple[str, str], Breaker] = Lru(_BREAKERS_BYTES)

    # Whether one may begin

    def may_start(self, turn: Turn) -> bool:
        """False while this tenant's summarizer is paused, or its budget of summaries is used up."""
        return self._find_pause(turn) is None

    def may_prepare(self, turn: Turn) -> bool:
        """Whether a compaction that no client waits for has a place. The next response decides again."""
        is_held_back = self.running.slots.is_crowded(turn.owner) or self.running.limiter.is_limited(turn)
        # A summary may be there already.
        return not (is_held_back or turn.is_unsure)

    def count_calls(self, turn: Turn) -> int:
        """The most summary calls that may be made while this request waits."""
        return self.running.limiter.count_calls(turn) if self.may_start(turn) else 0

    def count_open_breakers(self) -> int:
        """Pairs of a tenant and an upstream whose summarizer is paused now."""
        now = self._clock()
        return sum(not breaker.allows(now) for breaker in self._breakers.values())

    def find_running(self, turn: Turn) -> "asyncio.Task[CompactionResult] | None":
        """The compaction in progress on this chain, whatever it will cover."""
        running = self.running.find_summary(turn.owner, turn.received.conversation)
        return running.task if running is not None else None

    def is_preparing(self, turn: Turn) -> bool:
        """True if a compaction is in progress, here or elsewhere, whose pivot this request could use."""
        conversation = turn.received.conversation
        open_group = find_open_group(conversation)
        running = self.running.find_summary(turn.owner, conversation)
        if running is not None and running.covers <= open_group:
            return True
        covered = turn.head.covers if turn.head is not None else 0
        places = self._state.news.places
        elsewhere = places.find("compacting", make_tag(turn.owner), conversation)
        return any(covered < place.length <= open_group for place in elsewhere)

    def _find_pause(self, turn: Turn) -> Rejected | None:
        """Always None for methods that make no call."""
        if turn.policy.summary.method != "model":
            return None
        if not self._breaker(turn).allows(self._clock()):
            return PAUSED
        return OVER_BUDGET if self._summarizer.is_over_budget(turn) else None

    # Beginning

    def start(self, job: Job) -> "asyncio.Task[CompactionResult]":
        """Starts a compaction, or returns the one in progress: a chain has one at a time.

        If too many summaries are under way, it waits for its turn; one that a client waits for comes first.
        """
        turn, is_awaited = job.turn, job.request.is_awaited
        running = self.running.find_summary(turn.owner, turn.received.conversation)
        if running is not None:
            if is_awaited and running.place is not None:
                running.place.hurry()
            return running.task
        place = self.running.slots.place(turn.owner, is_awaited=is_awaited)
        task = self.running.spawn(self._run(job, place))
        self.running.add(_describe("summary", job, task, place))
        return task

    def start_digest(self, job: Job) -> "asyncio.Task[bool]":
        """The task that digests this cut, new or in progress. It returns whether a pivot is ready."""
        running = self.running.find_digest(job.key)
        if running is not None:
            return running.task
        task = self.running.spawn(self.digest(job), self.running.hold(job.turn))
        self.running.add(_describe("digest", job, task))
        return task

    def resume(self, turn: Turn, reason: str) -> None:
        """Decides again about an automatic compaction that a stop of the gateway interrupted."""
        if turn.head is not None and turn.head.prompt_tokens:
            is_due = find_reason(reason) is CompactionReason.COST
            preparing = self.prepare(turn, None, turn.head.total_tokens, is_due=is_due)
            self.running.spawn(preparing, self.running.hold(turn))

    async def prepare(self, turn: Turn, plan: Plan | None, total_tokens: int, *, is_due: bool) -> None:
        """Starts a compaction in the background, if one is needed.

        plan: what the answered request was sent with; None after a restart. The marker is saved before the
        work begins (docs/sources.md, 000 section 4). If the task is cancelled because the gateway stops, the
        marker stays. The compaction is not waited for: it holds its own memory.
        """
        if not self.may_prepare(turn):
            # A request that cannot do without waits for its summary.
            return
        situation = await self._planner.gather(turn, may_compact=self.may_start(turn))
        if plan is not None:
            # As it was sent, so that the summary can ride on it.
            situation = replace(situation, sticky=plan.pivot, batches=plan.batches, recalls=plan.recalls)
        ready = find_ready_pivot(situation)
        if is_due and ready is not None:
            # The rent has been paid for a summary that is there already. The head says so, wherever the next
            # request arrives.
            self._save_head(turn)
            return
        cut = await self._planner.choose(decide_after, situation, total_tokens, is_due=is_due)
        if cut is None or self.find_running(turn) is not None:
            return
        is_for_cost = is_due and not self._planner.is_past_soft(turn, total_tokens)
        reason = CompactionReason.COST if is_for_cost else CompactionReason.SOFT_THRESHOLD
        marker = self.save_marker(turn, reason)
        calls = turn.policy.summary.max_calls
        request = CompactionRequest(reason=reason, calls=calls, is_resumed=plan is None)
        task = self.start(Job(turn, situation, cut, request))
        task.add_done_callback(partial(self._drop_marker, marker))

    def save_marker(self, turn: Turn, reason: CompactionReason, instructions: str = "") -> Marker:
        """Saves a marker for a compaction, with the head that leads to it after a crash."""
        self._save_head(turn)
        conversation = turn.received.conversation
        marker = Marker(
            owner=turn.owner,
            key=conversation.key.hex(),
            length=len(conversation.messages),
            auto=reason is not CompactionReason.MANUAL,
            reason=reason,
            created_seconds=time.time(),
            instructions=instructions,
            conversation=turn.conversation_id,
        )
        self._state.tasks.save_marker(marker)
        return marker

    def _save_head(self, turn: Turn) -> None:
        head = self._state.heads.find(turn.received.conversation, turn.scope)
        if head is not None:
            self._state.heads.save(head)

    def _end_due(self, turn: Turn) -> None:
        """One for cost has failed, if any began: its successor waits for its threshold."""
        head = self._state.heads.find(turn.received.conversation, turn.scope)
        if head is not None and head.ledger is not None and head.ledger.is_due:
            head.ledger = replace(head.ledger, is_due=False)

    def _drop_marker(self, marker: Marker, task: "asyncio.Task[CompactionResult]") -> None:
        if not task.cancelled():
            self._state.tasks.drop_marker(marker.owner, marker.key)

    # One compaction: queue, lease

    async def _run(self, job: Job, place: Place) -> CompactionResult:
        """The result, made here or by another process.

        While it waits, for its turn or for another process, it holds its request only. In the background it
        does not wait for another process, unless the compaction was interrupted before.
        """
        turn, request = job.turn, job.request
        copies_bytes = count_held(turn) - turn.weight_bytes
        with self.running.memory.open(turn.owner) as share:
            share.take(turn.weight_bytes)
            if turn.policy.summary.method != "model" or not self.may_start(turn):
                # Without a call there is nothing to pay for twice, and no place to wait for.
                share.take(copies_bytes)
                return await self.make(job)

            @asynccontextmanager
            async def enter() -> AsyncIterator[None]:
                async with place:
                    share.take(copies_bytes)
                    try:
                        yield
                    finally:
                        share.shrink(copies_bytes)

            try:
                result = await self._state.single.run(
                    turn.owner,
                    name_branch(job.situation.conversation, job.cut),
                    partial(self._lead, job),
                    # The pivot of another process does not know a person's instructions.
                    also=None if job.is_manual else partial(self._find_newer, job),
                    waits=lambda: place.is_awaited or request.is_resumed or job.is_manual,
                    inside=enter,
                )
            except WorkFailed as failed:
                return CompactionResult(Rejected(failed.reason, is_summarizer_fault=False), 0)
            except LeaseLost:
                return CompactionResult(LOST, 0)
            return result if result is not None else CompactionResult(ELSEWHERE, 0)

    async def _find_newer(self, job: Job) -> CompactionResult | None:
        """A pivot that makes this compaction needless, which another process may have made meanwhile, as if
        it were the one that was asked for: its client has waited for one call.

        A digest of the same messages does not: a client that could not wait got it, and the summary replaces
        it. Nor is a store waited for that is away: then this process is alone.
        """
        keys = list_newer_keys(job.situation.conversation, job.cut)
        try:
            newest = await self._state.pivots.load_newest(job.turn.owner, keys)
        except Unknown:
            return None
        if newest is None or (newest.is_digest and newest.key == job.key):
            return None
        return CompactionResult(newest, 1)

    async def _lead(self, job: Job, work: Work) -> CompactionResult:
        """Raises LeaseLost if another process has taken over."""
        base = job.cut.base
        if await self._is_edited(base):
            return CompactionResult(EDITED, 0)
        if job.request.reason is CompactionReason.SOFT_THRESHOLD:
            # No other process makes one for cost: this one holds the lease.
            self._end_due(job.turn)
        place = ChainPlace(job.key, job.cut.covers)
        self._state.news.announce_place("compacting", job.turn.owner, place)
        try:
            result = await self.make(job, work)
        finally:
            self._state.news.announce_place("idle", job.turn.owner, place)
        if result.pivot is None and result.outcome not in _OWN_FAILURES:
            await work.note_failure(result.failure)
        return result

    # Make, check, store, report

    async def make(self, job: Job, work: Work | None = None) -> CompactionResult:
        """Makes, checks and stores a pivot by the policy's method, and reports what came of it.

        work: holds the lease under which it is stored. None: where there is a pivot for the same messages
        already, that one is the result. Raises LeaseLost.
        """
        turn, situation, cut, request = job
        started = self._clock()
        pause = self._find_pause(turn)
        if pause is not None:
            result = CompactionResult(pause, 0)
            if job.is_manual:
                self._reporter.note_compaction(turn, cut, result, request, 0)
            return result
        self._set_breaker(turn, self._breaker(turn).with_attempt(started))
        pre_tokens = situation.count_with(cut.base)
        result = replace(await self._make_pivot(job, pre_tokens), pre_tokens=pre_tokens)
        if result.pivot is not None:
            pivot, known = result.pivot, self._state.pivots.find(result.pivot.key)
            if job.is_manual:
                # A person who compacts has not been interrupted, so the model is not told to resume.
                pivot = replace(pivot, resume="", is_manual=True)
            if known is not None and known.is_digest:
                # The next version of that digest, which no edit of it may change.
                pivot = replace(pivot, version=known.version + 1)
            result = replace(result, post_tokens=situation.count_after(cut.base, pivot))
            try:
                result = replace(result, outcome=await self._store(job, pivot, work))
            except LeaseLost:
                lost = replace(result, outcome=LOST)
                self._reporter.note_compaction(turn, cut, lost, request, 0)
                raise
            if result.pivot is not None and result.pivot is not pivot:
                # The process that stored its own reports it.
                self._reporter.note_unused_summary(turn, result)
                return result
        self._note_outcome(turn, result.outcome)
        self._reporter.note_compaction(turn, cut, result, request, self._clock() - started)
        return result

    async def _make_pivot(self, job: Job, pre_tokens: int) -> CompactionResult:
        turn, situation, cut, request = job
        match turn.policy.summary.method:
            case "model":
                return await self._summarizer.summarize(turn, situation, cut, request, pre_tokens)
            case "digest":
                return CompactionResult(await self._pivots.make_digest(turn, situation, cut), 0)
            case "drop":
                return CompactionResult(await self._pivots.make_note(turn, situation, cut), 0)

    async def digest(self, job: Job) -> bool:
        """Makes a digest for the cut. True if a pivot is ready, which may be a summary that came first.

        A digest never replaces a summary of the same messages. Of several processes that digest them, all
        use the one that was stored first.
        """
        turn, situation, cut, request = job
        started = self._clock()
        if self._has_summary(job):
            return True
        if self._find_pause(turn) is OVER_BUDGET:
            self._reporter.note_unaffordable_summary(turn)
        digest = await self._pivots.make_digest(turn, situation, cut)
        # Look again: a summary may have arrived meanwhile. From here to the write nothing is awaited.
        if self._has_summary(job):
            return True
        if self.running.limiter.is_limited(turn):
            # The next request will hardly continue this one. If it does, the digest is written then.
            self._state.pivots.hold(digest)
            self._reporter.note_held_digest(
                turn, digest, replace(request, reason=CompactionReason.CLIENT_TRIMS)
            )
            return True
        pre_tokens = situation.count_with(cut.base)
        post_tokens = situation.count_after(cut.base, digest)
        stored = await self._store(job, digest)
        if stored is digest or isinstance(stored, Rejected):
            result = CompactionResult(stored, 0, pre_tokens=pre_tokens, post_tokens=post_tokens)
            self._reporter.note_compaction(turn, cut, result, request, self._clock() - started)
        return isinstance(stored, Pivot)

    def _has_summary(self, job: Job) -> bool:
        known = self._state.pivots.find(job.key)
        return known is not None and not known.is_digest

    async def _store(self, job: Job, pivot: Pivot, work: Work | None = None) -> Pivot | Rejected:
        """The pivot that is used from now on, or why there is none. Raises LeaseLost."""
        pivots, base = self._state.pivots, job.cut.base
        try:
            if work is not None:
                return await work.store(self._make_write(pivot, base, work.lease))
            if await self._is_edited(base):
                # Nothing is overwritten, so only what it was made from can be lost.
                return EDITED
            return await pivots.save_new(pivot)
        except Unusable:
            # It is paid for, and traffic goes on. A restart forgets it.
            pivots.hold(pivot)
            return pivot
        except StoreError:
            return NOT_STORED

    def _make_write(
        self, pivot: Pivot, base: Pivot | None, held: Lease
    ) -> Callable[[Lease], Coroutine[Any, Any, Pivot | Rejected | None]]:
        """Nobody edits the base while its lease is held; a digest in the summary's place has another."""
        pivots = self._state.pivots
        known = pivots.find(pivot.key)

        async def write(lease: Lease) -> Pivot | Rejected | None:
            if lease is not held and await self._is_edited(base):
                return EDITED
            # Nobody waits for a store that is away to say that nothing was there.
            if known is not None and await pivots.find_edited(pivot) is not None:
                return EDITED
            return await pivots.save_leased(lease, pivot)

        return write

    async def _is_edited(self, base: Pivot | None) -> bool:
        """Whether a person has changed what a summary is made from; no if the store does not say."""
        edited = await self._state.pivots.find_edited(base) if base is not None else None
        return edited is not None and base is not None and edited.version != base.version

    # The breaker

    def _note_outcome(self, turn: Turn, outcome: Pivot | Rejected) -> None:
        if isinstance(outcome, Pivot):
            self._set_breaker(turn, Breaker())
        elif outcome.is_summarizer_fault or outcome is NOT_STORED:
            # A summary that cannot be stored is thrown away, though it was paid for.
            self._set_breaker(turn, self._breaker(turn).with_failure(self._clock()))

    def _breaker(self, turn: Turn) -> Breaker:
        return self._breakers.get((turn.owner, turn.upstream.name)) or Breaker()

    def _set_breaker(self, turn: Turn, breaker: Breaker) -> None:
        self._breakers.put((turn.owner, turn.upstream.name), breaker, _BREAKER_WEIGHT_BYTES)


def _describe(
    kind: Literal["summary", "digest"], job: Job, task: "asyncio.Task[Any]", place: Place | None = None
) -> RunningTask:
    turn = job.turn
    return RunningTask(kind, turn.owner, turn.conversation_id, job.key, task, job.cut.covers, place)


def count_held(turn: Turn) -> int:
    """Bytes that background work for this turn holds."""
    return _HELD_COPIES * turn.weight_bytes
