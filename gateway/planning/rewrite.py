"""What leaves for the provider: a plan turned into the bytes of a body, and what the gateway adds to it.

Knows how bodies are made, not why: plans come from `core.compaction`.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from threading import Lock
from typing import Final

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory import MemoryBudget
from gateway.conversations.branches import NewestRequest
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import UNCHANGED, Plan, fingerprint_plan
from gateway.core.compaction.situation import Situation
from gateway.core.errors import Overloaded
from gateway.core.history.pivot import Mark, Pivot
from gateway.http.client import UpstreamCall
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.planning.planner import Planner
from gateway.wire.arrays import Arrays, ArraySource, ArrayWindow, make_arrays
from gateway.wire.edits import (
    Edit,
    apply_edits,
    make_output_edit,
    make_recall_edits,
    make_usage_edit,
    make_view_edits,
)
from gateway.wire.format import Format

_RENDERED_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 300
_REFUSERS_BYTES: Final = 1 << 18
_REFUSER_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 120
# Rendering so much takes a few milliseconds.
_INLINE_BYTES: Final = 256 * 1024
# A small message costs as much as one of this size.
_LEAST_BYTES: Final = 1_000

# Of the bodies of one answer; a single larger message is an answer of its own.
_SHOWN_BYTES: Final = 4 << 20
# Slices of the body, their texts in an answer, and the answer as it is sent.
_SHOWN_COPIES: Final = 3
# A token takes about this many bytes of JSON.
_BYTES_PER_TOKEN: Final = 3.5
# Identifies a shortened message, or the messages of a pivot.
RenderedKey = tuple[bytes, int | None, str] | tuple[str, float, int, str, str | None]


class Rewriter:
    """Carries out a plan on a body: collects the edits and applies them all at once.

    Rendered messages are kept, so that a shortened message is parsed once in its life. May be used from
    several threads.
    """

    def __init__(self, max_bytes: int) -> None:
        self._rendered: Lru[RenderedKey, bytes] = Lru(max_bytes)
        self._lock = Lock()

    def clear(self) -> None:
        """What was rendered is rendered again."""
        with self._lock:
            self._rendered.clear()

    def rewrite(self, turn: Turn, plan: Plan, more: Sequence[Edit] = ()) -> bytes:
        """The received body itself if nothing of it changes. more: edits beside those of the plan, which come
        last where they meet.
        """
        body, conversation = turn.received.body, turn.received.conversation
        edits: list[Edit] = []
        if plan.changes_prefix:
            view, placeholders = plan.view, _find_placeholders(plan)
            shortened = {
                position: self._render_message(turn, mark, placeholders[position])
                for position, mark in view.marks.items()
            }
            render_pivot = partial(self._render_pivot, turn.received.format)
            edits = make_view_edits(body, conversation, view, shortened, render_pivot)
            edits += make_recall_edits(body, conversation, plan.recalls)
        if plan.output is not None:
            edits.append(make_output_edit(body, plan.output))
        return apply_edits(body.data, [*edits, *more])

    def show(self, turn: Turn, plan: Plan, window: ArrayWindow) -> Arrays:
        """A part of the array as received and as this plan sends it."""
        view, placeholders = plan.view, _find_placeholders(plan)

        def render(position: int) -> bytes:
            return self._render_message(turn, view.marks[position], placeholders[position])

        source = ArraySource(
            body=turn.received.body,
            conversation=turn.received.conversation,
            view=view,
            render_shortened=render,
            render_summary=partial(self._render_pivot, turn.received.format),
            recalled={recall.position: recall.text.encode() for recall in plan.recalls},
        )
        return make_arrays(source, window)

    def _render_pivot(self, wire_format: Format, pivot: Pivot, next_role: str) -> bytes:
        key = (pivot.key, pivot.created_seconds, pivot.version, next_role, pivot.question)
        return self._find_or_render(key, lambda: wire_format.render_summary(pivot, next_role))

    def _render_message(self, turn: Turn, mark: Mark, placeholder: str) -> bytes:
        received = turn.received
        key = (received.conversation.messages[mark.position].key, mark.keep_chars, placeholder)
        return self._find_or_render(
            key, lambda: received.format.render_marked(received.raw(mark.position), mark, placeholder)
        )

    def _find_or_render(self, key: RenderedKey, render: Callable[[], bytes]) -> bytes:
        with self._lock:
            found = self._rendered.get(key)
        if found is None:
            found = render()
            with self._lock:
                self._rendered.put(key, found, len(found) + _RENDERED_WEIGHT_BYTES)
        return found


class CallMaker:
    """Makes the call of a turn, with `include_usage` where the gateway needs it and the client did not ask.

    Plans that shorten much of a history are carried out in a thread: a prune batch may mark ten thousand tool
    results, and each is parsed and rendered.
    """

    def __init__(self, rewriter: Rewriter, lanes: Lanes) -> None:
        self._rewriter = rewriter
        self._lanes = lanes
        # Models at an upstream that have refused to be asked for usage.
        self._refusers: Lru[tuple[str, str], bool] = Lru(_REFUSERS_BYTES)

    def adds_usage(self, turn: Turn) -> bool:
        """Whether the call asks for usage beside what the client asks for: in a stream without it."""
        envelope, upstream = turn.received.body.envelope, turn.upstream
        lacks_usage = envelope.is_streaming and not envelope.wants_usage
        return lacks_usage and upstream.include_usage and (upstream.name, turn.model) not in self._refusers

    def note_refused_usage(self, turn: Turn) -> None:
        weight = _REFUSER_WEIGHT_BYTES + weigh_texts(turn.model)
        self._refusers.put((turn.upstream.name, turn.model), True, weight)

    async def make(self, turn: Turn, plan: Plan, *, adds_usage: bool) -> UpstreamCall:
        if not adds_usage:
            call = UpstreamCall(turn.upstream, turn.upstream_head, turn.raw_body)
            if _passes_as_received(turn, plan):
                return call
            return call.with_body(await self.rewrite(turn, plan))
        # The response is edited as it comes.
        head = turn.upstream_head.without_encoding.asking_for_identity
        return UpstreamCall(turn.upstream, head, await self.make_body(turn, plan, adds_usage=adds_usage))

    async def make_body(self, turn: Turn, plan: Plan, *, adds_usage: bool) -> bytes:
        """Without a content encoding."""
        return await self.rewrite(turn, plan, (make_usage_edit(turn.received.body),) if adds_usage else ())

    async def rewrite(self, turn: Turn, plan: Plan, more: Sequence[Edit] = ()) -> bytes:
        """See Rewriter."""
        size_bytes = _weigh(turn, plan)
        if size_bytes < _INLINE_BYTES:
            return self._rewriter.rewrite(turn, plan, more)
        return await self._lanes.run(turn.owner, size_bytes, self._rewriter.rewrite, turn, plan, more)

    async def show(self, turn: Turn, plan: Plan, window: ArrayWindow) -> Arrays:
        """See Rewriter. Always in a thread: for operators, who wait for what clients need first."""
        return await self._lanes.run(turn.owner, window.max_bytes, self._rewriter.show, turn, plan, window)


def _find_placeholders(plan: Plan) -> dict[int, str]:
    """By position."""
    return {mark.position: batch.placeholder for batch in plan.batches for mark in batch.marks}


def _weigh(turn: Turn, plan: Plan) -> int:
    """What is rendered at most; shortened messages of earlier requests are usually kept."""
    messages = turn.received.conversation.messages
    positions = [mark.position for batch in plan.batches for mark in batch.marks]
    return sum(messages[position].size_bytes + _LEAST_BYTES for position in positions)


def _passes_as_received(turn: Turn, plan: Plan) -> bool:
    """Whether the upstream holds exactly the history that would be sent: it holds what was sent before the
    response that the request names, and nothing of a request that names none.
    """
    held = turn.received.held
    if held == UNCHANGED or plan.output is not None:
        return not plan.changes_body
    return fingerprint_plan(plan) == held


class ArrayView:
    """What operators see of a conversation's newest request: the array as received beside the array as sent.

    Of a history that the provider holds this is what the model has seen: everything that the request names
    is written out.
    """

    def __init__(self, planner: Planner, calls: CallMaker, memory: MemoryBudget) -> None:
        """memory: of all bodies under way."""
        self._planner = planner
        self._calls = calls
        self._memory = memory

    @asynccontextmanager
    async def show(self, newest: NewestRequest, start: int, most: int) -> AsyncIterator[Arrays]:
        """A part of both arrays, whose memory is counted until the block ends. start, most: see ArrayWindow.

        Raises Overloaded.
        """
        turn, plan = newest.turn, newest.plan
        size_bytes = min(len(turn.received.body.data), _SHOWN_BYTES)
        with self._memory.open(turn.owner) as share:
            if not share.try_grow(_SHOWN_COPIES * size_bytes):
                raise Overloaded("There is no memory left to show these messages; try again.")
            situation = await self._planner.gather(turn, may_compact=False)
            window = ArrayWindow(start, most, _SHOWN_BYTES)
            arrays = await self._calls.show(turn, plan, window)
            raws = [*(row.raw or b"" for row in arrays.received), *(row.raw for row in arrays.sent)]
            share.take(_SHOWN_COPIES * max(0, sum(map(len, raws)) - size_bytes))
            yield _with_tokens(arrays, situation, plan)


def _with_tokens(arrays: Arrays, situation: Situation, plan: Plan) -> Arrays:
    """True tokens, as far as they are known. Those of the leading block are counted together with the tools,
    so here they are a guess by their length.
    """
    sizes = situation.calibrated

    def count_sent(position: int | None, raw: bytes) -> int:
        return _guess(raw) if position is None else int(sizes.shown(plan.view, position, position + 1))

    def count_received(position: int | None, raw: bytes | None) -> int:
        return _guess(raw or b"") if position is None else int(sizes.messages[position])

    received = [row._replace(tokens=count_received(row.position, row.raw)) for row in arrays.received]
    sent = [row._replace(tokens=count_sent(row.position, row.raw)) for row in arrays.sent]
    return arrays._replace(received=received, sent=sent)


def _guess(raw: bytes) -> int:
    return int(len(raw) / _BYTES_PER_TOKEN)
