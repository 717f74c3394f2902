"""What operators see of a conversation's newest request: the array as received beside the array as sent.

Rendered by the rewriter that made the request. Of a history that the provider holds this is what the model
has seen: everything that the request names is written out.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gateway.bounds.memory import MemoryBudget
from gateway.conversations.branches import NewestRequest
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.situation import Situation
from gateway.core.errors import Overloaded
from gateway.planning.planner import Planner
from gateway.planning.rewrite import CallMaker
from gateway.wire.arrays import Arrays, ArrayWindow

# Of the bodies of one answer; a single larger message is an answer of its own.
_MAX_BYTES: Final = 4 << 20
# Slices of the body, their texts in an answer, and the answer as it is sent.
_COPIES: Final = 3
# A token takes about this many bytes of JSON.
_BYTES_PER_TOKEN: Final = 3.5


class ArrayView:
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
        size_bytes = min(len(turn.received.body.data), _MAX_BYTES)
        with self._memory.open(turn.owner) as share:
            if not share.try_grow(_COPIES * size_bytes):
                raise Overloaded("There is no memory left to show these messages; try again.")
            situation = await self._planner.gather(turn, may_compact=False)
            window = ArrayWindow(start, most, _MAX_BYTES)
            arrays = await self._calls.show(turn, plan, window)
            share.take(_COPIES * max(0, _weigh(arrays) - size_bytes))
            yield _with_tokens(arrays, situation, plan)


def _weigh(arrays: Arrays) -> int:
    return sum(len(row.raw or b"") for row in arrays.received) + sum(len(row.raw) for row in arrays.sent)


def _with_tokens(arrays: Arrays, situation: Situation, plan: Plan) -> Arrays:
    """True tokens, as far as they are known. Those of the leading block are counted together with the tools,
    so here they are a guess by their length.
    """
    sizes = situation.calibrated

    def count_sent(position: int | None, raw: bytes) -> int:
        return _guess(raw) if position is None else int(sizes.shown(plan.view, position, position + 1))

    received = [
        row._replace(
            tokens=_guess(row.raw or b"") if row.position is None else int(sizes.messages[row.position])
        )
        for row in arrays.received
    ]
    sent = [row._replace(tokens=count_sent(row.position, row.raw)) for row in arrays.sent]
    return arrays._replace(received=received, sent=sent)


def _guess(raw: bytes) -> int:
    return int(len(raw) / _BYTES_PER_TOKEN)
