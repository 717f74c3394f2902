"""Carries out what plans decide, and is the only writer of state.

Its tasks belong to the app: a client that hangs up neither stops nor loses a summary. One summary per chain at
a time. Nothing that failed its checks is stored; a pivot is durable before anybody may use it.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from gateway.core.breaker import Breaker
from gateway.core.conversation import Conversation, find_open_group
from gateway.core.cut import Cut
from gateway.core.errors import UpstreamFailed
from gateway.core.estimate import CALIBRATED_MARGIN
from gateway.core.head import Head, smoothed_growth
from gateway.core.pivot import Mark, Pivot, is_on_chain
from gateway.core.plan import Plan, Situation, decide_after
from gateway.core.summary import Accepted, Rejected, judge_summary, strip_thinking
from gateway.core.transcript import TOOL_CHARS_STEPS, Spoken
from gateway.core.usage import Usage
from gateway.core.view import measure, shown_tokens
from gateway.core.weights import choose_ratio
from gateway.limits import LimitsBook
from gateway.planner import Planner
from gateway.records import Marker
from gateway.settings import Prompts
from gateway.sizes import Sizer
from gateway.state import State
from gateway.store import StoreError
from gateway.summariser import Assignment, Summariser, make_parts
from gateway.turn import Turn
from gateway.upstream import Upstreams, make_headers, make_url
from gateway.wire.chat_summary import output_key
from gateway.wire.chat_text import read_spoken

log = logging.getLogger("gateway.compactor")

# One retry (DESIGN §6).
_ATTEMPTS = 2
# Fences, labels and chat template around the history, in true tokens.
_FRAME_TOKENS = 600
# What the inserted messages cost beyond their texts, in raw tokens.
_INSERTED_TOKENS = 12


@dataclass(frozen=True, slots=True)
class _Running:
    tenant: str
    key: str
    covers: int
    task: "asyncio.Task[bool]"


class Compactor:
    def __init__(
        self,
        *,
        state: State,
        planner: Planner,
        sizer: Sizer,
        summariser: Summariser,
        upstreams: Upstreams,
        limits: LimitsBook,
        prompts: Prompts,
    ) -> None:
        self._state = state
        self._planner = planner
        self._sizer = sizer
        self._summariser = summariser
        self._upstreams = upstreams
        self._limits = limits
        self._prompts = prompts
        self._running: dict[str, _Running] = {}
        self._breakers: dict[tuple[str, str], Breaker] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Unfinished work is dropped; its markers stay and bring it back at the chain's next request."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the proxy hands over, in plain calls.

    def observe(self, turn: Turn, plan: Plan, usage: Usage | None) -> None:
        """After an answer that upstream gave: records the head, and looks whether the window is filling."""
        head = _make_head(turn, plan, usage)
        self._state.save_head(head)
        if plan.new_batch is not None:
            self._state.save_batch(plan.new_batch)
        if usage is None:
            return
        is_known = self._state.read_calibration(turn.owner, turn.upstream.name, turn.model).samples > 0
        if not is_known or self._planner.is_near(turn, usage.total):
            self._spawn(self._learn(turn, plan, usage))

    def start(self, turn: Turn, cut: Cut, reason: str) -> "asyncio.Task[bool]":
        """The compaction of this cut, or the one that is running on the chain already. True: a pivot is ready."""
        conversation = turn.received.conversation
        running = self.find_running(turn.owner, conversation)
        if running is not None:
            return running
        key = conversation.chain[cut.covers].hex()
        task = self._spawn(self._compact(turn, cut, reason))
        self._running[key] = _Running(turn.owner, key, cut.covers, task)
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return task

    def find_running(self, owner: str, conversation: Conversation) -> "asyncio.Task[bool] | None":
        """A compaction under way whose pivot this conversation could use."""
        open_group = find_open_group(conversation)
        for running in self._running.values():
            if running.tenant != owner or running.covers > open_group:
                continue
            if is_on_chain(conversation, running.key, running.covers):
                return running.task
        return None

    def resume(self, turn: Turn) -> None:
        """A marker that a crash left behind runs at its chain's next request."""
        head = turn.head
        marker = self._state.read_marker(head.key) if head is not None else None
        if head is None or marker is None or not head.prompt_tokens:
            return
        self._state.drop_marker(marker.key)
        self._spawn(self._consider(turn, None, head.total_tokens))

    # What happens in the background.

    async def _learn(self, turn: Turn, plan: Plan, usage: Usage) -> None:
        """Calibrates by this answer: near the lines, and as long as nothing is known. Then looks ahead."""
        state, received = self._state, turn.received
        calibration = await state.load_calibration(turn.owner, turn.upstream.name, turn.model)
        sizes = await self._sizer.measure(received)
        end = len(received.conversation.messages)
        raw = measure(plan.view, received.conversation, sizes.messages, sizes.environment, end)
        fresh = calibration.with_sample(usage.prompt_tokens, raw)
        state.save_calibration(turn.owner, turn.upstream.name, turn.model, fresh)
        if self._planner.is_near(turn, usage.total):
            await self._consider(turn, plan, usage.total)

    async def _consider(self, turn: Turn, plan: Plan | None, total_tokens: int) -> None:
        """Schedule -> execute: the marker is queued before the work begins (document 000 §4)."""
        situation = await self._planner.gather(turn, may_compact=self.may_ask(turn))
        if plan is None:
            plan = Plan(
                pivot=situation.sticky,
                batches=tuple(situation.batches),
                new_batch=None,
                received=total_tokens,
                sent=total_tokens,
                output=None,
            )
        cut = decide_after(situation, plan, total_tokens)
        if cut is None or self.find_running(turn.owner, turn.received.conversation) is not None:
            return
        key = turn.received.conversation.key.hex()
        self._state.save_marker(
            Marker(
                owner=turn.owner,
                key=key,
                length=len(turn.received.conversation.messages),
                auto=True,
                reason="overflow",
                created_seconds=time.time(),
            )
        )
        await self.start(turn, cut, "overflow")
        self._state.drop_marker(key)

    async def _compact(self, turn: Turn, cut: Cut, reason: str) -> bool:
        """Summary -> checks -> pivot. False, and one log line, where any of it fails."""
        started = time.monotonic()
        if not self.may_ask(turn):
            return False
        situation = await self._planner.gather(turn, may_compact=True)
        try:
            accepted = await self._summarise(turn, cut, situation)
            if isinstance(accepted, Accepted):
                await self._state.save_pivot(await self._make_pivot(turn, cut, situation, accepted))
        except StoreError:
            accepted = Rejected("store")
        except UpstreamFailed as error:
            accepted = Rejected(str(error))
        self._note(turn, accepted)
        outcome = "compacted" if isinstance(accepted, Accepted) else f"compaction failed: {accepted.reason}"
        log.log(
            logging.INFO if isinstance(accepted, Accepted) else logging.WARNING,
            "%s conversation=%s reason=%s covers=%d folded_tokens=%d summary_tokens=%d seconds=%.1f",
            outcome,
            turn.conversation,
            reason,
            cut.covers,
            cut.folded,
            accepted.tokens if isinstance(accepted, Accepted) else 0,
            time.monotonic() - started,
        )
        return isinstance(accepted, Accepted)

    async def _summarise(self, turn: Turn, cut: Cut, situation: Situation) -> Accepted | Rejected:
        ratio = choose_ratio(situation.conversation, situation.sizes, situation.known)
        assignment = await self._assign(turn, cut, ratio)
        if assignment is None:
            return Rejected("history too big for the summariser")
        verdict: Accepted | Rejected = Rejected("not asked")
        for _ in range(_ATTEMPTS):
            try:
                answer = await self._summariser.ask(assignment)
            except UpstreamFailed as error:
                verdict = Rejected(str(error))
                continue
            tokens = int(await self._sizer.count(strip_thinking(answer.text)) * ratio)
            verdict = judge_summary(answer, tokens, cut.folded, cut.cap)
            if isinstance(verdict, Accepted):
                break
        return verdict

    async def _assign(self, turn: Turn, cut: Cut, ratio: float) -> Assignment | None:
        """The call that the summariser's window can hold: tool results are cut ever shorter until it does."""
        policy = turn.policy
        upstream = self._upstreams.read(policy.summary.upstream or "") or turn.upstream
        model = policy.summary.model or turn.model
        context = self._limits.read(upstream.name, model).context
        spoken = await asyncio.to_thread(_read_spoken, turn, cut)
        earlier = cut.base.summary if cut.base else None
        for tool_chars in TOOL_CHARS_STEPS:
            parts = make_parts(spoken, earlier, policy, self._prompts, tool_chars)
            prompt = int(sum([await self._sizer.count(part) for part in parts]) * ratio) + _FRAME_TOKENS
            room = (context or 1 << 30) - int(prompt * (1 + CALIBRATED_MARGIN))
            if room >= cut.cap:
                break
        else:
            return None
        is_own = upstream.name == turn.upstream.name
        url = turn.url if is_own else make_url(upstream, "/v1/chat/completions")
        return Assignment(
            url=str(url),
            headers=tuple(make_headers(turn.raw_headers, upstream).items()),
            model=model,
            output_key=output_key(turn.received.body.envelope),
            parts=parts,
            cap=cut.cap,
            room=room,
            timeout_seconds=policy.summary.timeout_seconds,
        )

    async def _make_pivot(self, turn: Turn, cut: Cut, situation: Situation, accepted: Accepted) -> Pivot:
        conversation = situation.conversation
        opening_end = conversation.opening_end if turn.policy.keep.opening else 0
        opening = situation.sizes.messages[:opening_end]
        limit = cut.opening_chars
        mark = Mark(0, limit) if limit is not None else None
        question = self._prompts.question if opening_end == 0 else None
        inserted = [accepted.summary, self._prompts.resume, question or ""]
        return Pivot(
            owner=turn.owner,
            key=conversation.chain[cut.covers].hex(),
            covers=cut.covers,
            opening_end=opening_end,
            summary=accepted.summary,
            question=question,
            resume=self._prompts.resume,
            tokens=_INSERTED_TOKENS + sum([await self._sizer.count(text) for text in inserted]),
            opening_chars=limit,
            opening_tokens=sum(shown_tokens(size, mark) for size in opening),
            saved_tokens=max(0, cut.folded - accepted.tokens) + (cut.base.saved_tokens if cut.base else 0),
            created_seconds=time.time(),
        )

    def may_ask(self, turn: Turn) -> bool:
        """Not while the summariser of this tenant has failed too often in a row."""
        breaker = self._breakers.get((turn.owner, turn.upstream.name), Breaker())
        return breaker.allows(time.monotonic())

    def _note(self, turn: Turn, verdict: Accepted | Rejected) -> None:
        key = (turn.owner, turn.upstream.name)
        breaker = self._breakers.pop(key, Breaker())
        if isinstance(verdict, Rejected):
            self._breakers[key] = breaker.with_failure(time.monotonic())

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "background task failed: %s", type(task.exception()).__name__, exc_info=task.exception()
            )


def _make_head(turn: Turn, plan: Plan, usage: Usage | None) -> Head:
    conversation = turn.received.conversation
    total = usage.total if usage is not None else 0
    return Head(
        owner=turn.owner,
        key=conversation.key.hex(),
        length=len(conversation.messages),
        scope=turn.scope,
        tools=turn.received.body.envelope.tools.hex(),
        prompt_tokens=usage.prompt_tokens if usage is not None else 0,
        output_tokens=usage.output_tokens if usage is not None else 0,
        growth_tokens=smoothed_growth(turn.own_head, total) if usage is not None else turn.growth,
        pivot=plan.pivot.key if plan.pivot else None,
        batches=tuple(batch.key for batch in plan.batches),
        conversation=turn.conversation,
        parent=turn.parent,
    )


def _read_spoken(turn: Turn, cut: Cut) -> list[Spoken]:
    """The originals that the client just sent, never placeholders (DESIGN §6)."""
    return [read_spoken(turn.received.raw(position)) for position in range(cut.start, cut.covers)]
