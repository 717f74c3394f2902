"""Makes pivots where no model gives a summary: quotes what was said, or leaves it out, and asks nobody."""

import asyncio
from typing import Final

from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.plan import Situation
from gateway.core.compaction.summary import Accepted
from gateway.core.digest.render import make_digest
from gateway.core.history.pivot import Pivot
from gateway.core.sizing.weights import weigh
from gateway.pivots import PivotMaker
from gateway.planning.message_sizes import Sizer
from gateway.spoken import read_folded

# A first guess; what it really takes is counted, and the digest made again within its cap.
_CHARS_PER_TOKEN: Final = 3.0
_TRIES: Final = 4
_SHRINK: Final = 0.95


class Digester:
    def __init__(self, sizer: Sizer, pivots: PivotMaker) -> None:
        self._sizer = sizer
        self._pivots = pivots

    async def digest(self, turn: Turn, cut: Cut, situation: Situation) -> Pivot:
        """Never fails; the digest of the same history is the same."""
        spoken = await asyncio.to_thread(read_folded, turn, cut)
        ratio = weigh(situation.conversation, situation.sizes, situation.known).ratio
        earlier = cut.base.summary if cut.base is not None else None
        most_chars = int(cut.cap * _CHARS_PER_TOKEN)
        for _ in range(_TRIES):
            text = await asyncio.to_thread(make_digest, spoken, earlier, most_chars)
            tokens = int(await self._sizer.count(text, turn.policy.estimator) * ratio)
            if tokens <= cut.cap:
                break
            most_chars = int(min(len(text), most_chars) * cut.cap / tokens * _SHRINK)
        made = Accepted(text, tokens)
        return await self._pivots.make(turn, cut, situation, made, is_digest=True)

    async def drop(self, turn: Turn, cut: Cut, situation: Situation) -> Pivot:
        """A line that says that something is missing, in place of all of it."""
        note = turn.policy.prompts.dropped
        made = Accepted(note, await self._sizer.count(note, turn.policy.estimator))
        return await self._pivots.make(turn, cut, situation, made, is_digest=True)
