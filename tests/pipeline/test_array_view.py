"""Both arrays of a conversation's newest request, with their tokens, within bounds."""

import pytest

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory_budget import MemoryBudget
from gateway.conversations.registry import NewestRequest
from gateway.core.compaction.plan import Plan
from gateway.core.errors import Overloaded
from gateway.core.history.pivot import Mark
from gateway.outgoing.fair_rewriter import FairRewriter
from gateway.outgoing.rewriter import Rewriter
from gateway.pipeline.array_view import ArrayView
from gateway.wire.arrays import CountedArrays
from tests.builders.chat import make_batch, make_pivot, make_plan
from tests.builders.compaction import CompactionParts, compaction_parts, head_of, receive, turn_of

_RECEIVED = receive(6)


def make_newest(plan: Plan) -> NewestRequest:
    return NewestRequest(turn_of(_RECEIVED), plan, head_of(_RECEIVED), 1.0)


def make_view(parts: CompactionParts, lanes: Lanes, memory: MemoryBudget | None = None) -> ArrayView:
    return ArrayView(parts.planner, FairRewriter(Rewriter(1 << 20), lanes), memory or parts.memory)


async def show(parts: CompactionParts, plan: Plan, start: int = 0, most: int = 100) -> CountedArrays:
    lanes = Lanes()
    async with make_view(parts, lanes).show(make_newest(plan), start, most) as shown:
        assert parts.memory.used_bytes >= len(_RECEIVED.body.data)
    assert parts.memory.used_bytes == 0
    lanes.close()
    return shown


async def test_each_message_has_its_tokens() -> None:
    conversation = _RECEIVED.conversation
    pivot = make_pivot(conversation, 5, summary="word " * 40)
    async with compaction_parts() as parts:
        shown = await show(parts, make_plan(pivot, (make_batch(conversation, [Mark(8)]),)))
    tokens, arrays = shown.tokens, shown.arrays
    assert len(tokens.received) == len(arrays.received) == 13
    assert len(tokens.sent) == len(arrays.sent)
    kinds = [row.kind for row in arrays.sent]
    assert tokens.sent[kinds.index("summary")] > 40
    assert tokens.sent[kinds.index("cleared")] < tokens.received[8] / 10
    assert tokens.received[2] > 500


async def test_a_part_has_the_tokens_of_its_messages() -> None:
    async with compaction_parts() as parts:
        whole = await show(parts, make_plan())
        part = await show(parts, make_plan(), 3, 2)
    assert part.arrays.end == 5
    assert part.tokens.received == whole.tokens.received[3:5] == part.tokens.sent


async def test_an_opening_that_is_cut_counts_as_cut() -> None:
    received = receive(6)
    pivot = make_pivot(received.conversation, 5, opening_end=3, opening_chars=100)
    async with compaction_parts() as parts:
        shown = await show(parts, make_plan(pivot))
    assert shown.arrays.received[2].fate == "shortened"
    assert shown.tokens.sent[2] < shown.tokens.received[2] / 10


async def test_without_memory_nothing_is_shown() -> None:
    memory, received = MemoryBudget(1 << 20), receive(100)
    memory.open("other").take(1 << 20)
    newest = NewestRequest(turn_of(received), make_plan(), head_of(received), 1.0)
    async with compaction_parts() as parts:
        with pytest.raises(Overloaded):
            await make_view(parts, Lanes(), memory).show(newest, 0, 10).__aenter__()
