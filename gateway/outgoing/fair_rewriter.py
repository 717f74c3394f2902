"""Carries out plans on bodies, those that shorten much of a history in a thread.

A prune batch may mark ten thousand tool results, and each is parsed and rendered.
"""

from collections.abc import Sequence
from typing import Final

from gateway.bounds.lanes import Lanes
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.outgoing.rewriter import Rewriter
from gateway.wire.arrays import Arrays, ArrayWindow
from gateway.wire.edits import Edit

# Rendering so much takes a few milliseconds.
_INLINE_BYTES: Final = 256 * 1024
# A small message costs as much as one of this size.
_LEAST_BYTES: Final = 1_000


class FairRewriter:
    def __init__(self, rewriter: Rewriter, lanes: Lanes) -> None:
        self._rewriter = rewriter
        self._lanes = lanes

    def clear(self) -> None:
        self._rewriter.clear()

    async def rewrite(self, turn: Turn, plan: Plan, more: Sequence[Edit] = ()) -> bytes:
        """See Rewriter."""
        size_bytes = _weigh(turn, plan)
        if size_bytes < _INLINE_BYTES:
            return self._rewriter.rewrite(turn, plan, more)
        return await self._lanes.run(turn.owner, size_bytes, self._rewriter.rewrite, turn, plan, more)

    async def show(self, turn: Turn, plan: Plan, window: ArrayWindow) -> Arrays:
        """See Rewriter. Always in a thread: for operators, who wait for what clients need first."""
        return await self._lanes.run(turn.owner, window.max_bytes, self._rewriter.show, turn, plan, window)


def _weigh(turn: Turn, plan: Plan) -> int:
    """What is rendered at most; shortened messages of earlier requests are usually kept."""
    if plan.pivot is None and not plan.batches:
        return 0
    messages = turn.received.conversation.messages
    positions = [mark.position for batch in plan.batches for mark in batch.marks]
    if plan.pivot is not None and plan.pivot.opening_chars is not None:
        positions += range(plan.pivot.opening_end)
    return sum(messages[position].size_bytes + _LEAST_BYTES for position in positions)
