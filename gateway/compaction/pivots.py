"""Makes a pivot of a text that stands for what a cut folds, a summary's or a digest's."""

import asyncio
import time
from typing import Final

from gateway.compaction.summary_prompt import read_folded
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.plan import Situation
from gateway.core.compaction.summary import Accepted
from gateway.core.digest.render import make_digest
from gateway.core.history.conversation import find_fold_start
from gateway.core.history.pivot import Mark, Pivot
from gateway.core.history.view import shown_tokens
from gateway.core.sizing.calibrated_sizes import calibrate_sizes
from gateway.planning.message_sizes import Sizer

# What the inserted messages cost beyond their texts, in raw tokens.
_INSERTED_TOKENS: Final = 12


class PivotMaker:
    def __init__(self, sizer: Sizer) -> None:
        self._sizer = sizer

    async def make(
        self, turn: Turn, cut: Cut, situation: Situation, text: Accepted, *, is_digest: bool
    ) -> Pivot:
        """Of one text and its true tokens. Stores nothing."""
        conversation, prompts = situation.conversation, turn.policy.prompts
        opening_end = find_fold_start(conversation, keeps_opening=turn.policy.keep.opening)
        mark = Mark(0, cut.opening_chars) if cut.opening_chars is not None else None
        question = prompts.question if opening_end == 0 else None
        inserted = [text.summary, prompts.resume, question or ""]
        return Pivot(
            owner=turn.owner,
            key=conversation.chain[cut.covers].hex(),
            covers=cut.covers,
            opening_end=opening_end,
            summary=text.summary,
            question=question,
            resume=prompts.resume,
            tokens=_INSERTED_TOKENS
            + sum([await self._sizer.count(part, turn.policy.estimator) for part in inserted]),
            opening_chars=cut.opening_chars,
            opening_tokens=sum(shown_tokens(size, mark) for size in situation.sizes.messages[:opening_end]),
            saved_tokens=max(0, cut.replaced_tokens - text.tokens)
            + (cut.base.saved_tokens if cut.base else 0),
            created_seconds=time.time(),
            is_digest=is_digest,
        )


# JOINED: Makes pivots where no model gives a summary: quotes what was said, or leaves it out,

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
        ratio = calibrate_sizes(situation.conversation, situation.sizes, situation.known).ratio
        earlier = cut.base.summary if cut.base is not None else None
        most_chars = int(cut.cap_tokens * _CHARS_PER_TOKEN)
        for _ in range(_TRIES):
            text = await asyncio.to_thread(make_digest, spoken, earlier, most_chars)
            tokens = int(await self._sizer.count(text, turn.policy.estimator) * ratio)
            if tokens <= cut.cap_tokens:
                break
            most_chars = int(min(len(text), most_chars) * cut.cap_tokens / tokens * _SHRINK)
        made = Accepted(text, tokens)
        return await self._pivots.make(turn, cut, situation, made, is_digest=True)

    async def drop(self, turn: Turn, cut: Cut, situation: Situation) -> Pivot:
        """A line that says that something is missing, in place of all of it."""
        note = turn.policy.prompts.dropped
        made = Accepted(note, await self._sizer.count(note, turn.policy.estimator))
        return await self._pivots.make(turn, cut, situation, made, is_digest=True)
