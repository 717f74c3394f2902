"""Makes pivots: from a model's summary, from a digest that quotes the history, or from a note.

Stores nothing.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.bounds.lanes import Lanes
from gateway.compaction.summary_prompt import read_entries
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import Accepted
from gateway.core.digest.fact_list import find_missing_facts
from gateway.core.digest.render import make_digest
from gateway.core.history.conversation import find_replaceable_start
from gateway.core.history.pivot import Mark, Pivot
from gateway.core.history.transcript import TranscriptEntry, cut_middle, list_entries
from gateway.core.history.view import shown_tokens
from gateway.planning.message_sizes import Sizer

# The inserted messages cost this many raw tokens beyond their texts.
_INSERTED_TOKENS: Final = 12
# A first guess for a digest. Its tokens are then counted, and a digest above its cap is made again, smaller.
_CHARS_PER_TOKEN: Final = 3.0
_TRIES: Final = 4
# Of an opening that is kept for a client that drops it later.
_MAX_OPENING_CHARS: Final = 16_384
_SHRINK: Final = 0.95


class PivotMaker:
    """clock: wall-clock seconds."""

    def __init__(self, sizer: Sizer, lanes: Lanes, clock: Callable[[], float] = time.time) -> None:
        self._sizer = sizer
        self._lanes = lanes
        self._clock = clock

    async def make_summary(self, turn: Turn, situation: Situation, cut: Cut, text: Accepted) -> Pivot:
        """A pivot whose text a model wrote."""
        return await self._make(turn, situation, cut, text, is_digest=False)

    async def make_digest(self, turn: Turn, situation: Situation, cut: Cut) -> Pivot:
        """A pivot made without a model. Never fails; the same history gives the same digest."""
        size_bytes = len(turn.received.body.data)
        entries = await self._lanes.run_steps(turn.owner, size_bytes, read_entries(turn, cut))
        earlier = cut.base.summary if cut.base is not None else None
        max_chars = int(cut.cap_tokens * _CHARS_PER_TOKEN)
        for _ in range(_TRIES):
            text = await self._lanes.run(turn.owner, size_bytes, make_digest, entries, earlier, max_chars)
            raw_tokens = await self._sizer.count(turn.owner, text, turn.policy.estimator)
            tokens = int(raw_tokens * situation.calibrated.ratio)
            if tokens <= cut.cap_tokens:
                break
            max_chars = int(min(len(text), max_chars) * cut.cap_tokens / tokens * _SHRINK)
        return await self._make(turn, situation, cut, Accepted(text, tokens), is_digest=True)

    async def find_missing_facts(
        self, turn: Turn, cut: Cut, entries: Sequence[TranscriptEntry], summary: str, max_chars: int
    ) -> tuple[str, ...]:
        """Lines with the names and numbers that a summary of these entries should have mentioned."""
        earlier = cut.base.summary if cut.base is not None else None
        size_bytes = len(turn.received.body.data)
        return await self._lanes.run(
            turn.owner, size_bytes, find_missing_facts, entries, earlier, summary, max_chars
        )

    async def make_note(self, turn: Turn, situation: Situation, cut: Cut) -> Pivot:
        """A pivot that drops the old turns; one line of the policy says that something is missing."""
        note = turn.policy.prompts.dropped
        text = Accepted(note, await self._sizer.count(turn.owner, note, turn.policy.estimator))
        return await self._make(turn, situation, cut, text, is_digest=True)

    async def _make(
        self, turn: Turn, situation: Situation, cut: Cut, text: Accepted, *, is_digest: bool
    ) -> Pivot:
        conversation, prompts = situation.conversation, turn.policy.prompts
        opening_end = find_replaceable_start(conversation, keeps_opening=turn.policy.keep.opening)
        mark = Mark(0, cut.opening_chars) if cut.opening_chars is not None else None
        earlier = cut.base.question if cut.base is not None else None
        question = (earlier or prompts.question) if opening_end == 0 else None
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
            + sum([await self._sizer.count(turn.owner, part, turn.policy.estimator) for part in inserted]),
            opening_chars=cut.opening_chars,
            opening_tokens=sum(shown_tokens(size, mark) for size in situation.sizes.messages[:opening_end]),
            saved_tokens=max(0, cut.replaced_tokens - text.tokens)
            + (cut.base.saved_tokens if cut.base else 0),
            created_seconds=self._clock(),
            is_digest=is_digest,
            opening=await self._read_opening(turn, opening_end),
        )

    async def _read_opening(self, turn: Turn, end: int) -> str | None:
        size_bytes = sum(message.size_bytes for message in turn.received.conversation.messages[:end])
        return await self._lanes.run(turn.owner, size_bytes, _read_opening, turn, end) if end else None


def _read_opening(turn: Turn, end: int) -> str | None:
    """What the messages before `end` say, cut in the middle if it is long."""
    entries = [turn.received.format.parse_entry(turn.received.raw(position)) for position in range(end)]
    texts = [entry.text for entry in list_entries(entries) if entry.text.strip() and not entry.is_result]
    return cut_middle("\n\n".join(texts), _MAX_OPENING_CHARS) or None
