"""Makes pivots: from a model's summary, from a digest that quotes the history, or from a note.

Stores nothing.
"""

import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final, NamedTuple

from gateway.bounds.lanes import Lanes, Steps
from gateway.compaction.summary_prompt import read_entries
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import SMALLER_SHARE, Cut
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import Accepted
from gateway.core.digest.render import make_digest
from gateway.core.history.conversation import find_replaceable_start
from gateway.core.history.framing import TextKind, make_framing
from gateway.core.history.pivot import Pivot
from gateway.core.history.transcript import TranscriptEntry, cut_middle, list_entries
from gateway.core.session.work_sections import FoldedHistory, append_lists
from gateway.planning.message_sizes import Sizer
from gateway.recall.beside_summary import choose_recalled
from gateway.recall.pieces import MOST_TOKENS

# The inserted messages cost this many raw tokens beyond their texts.
_INSERTED_TOKENS: Final = 12
# A first guess for a digest. Its tokens are then counted, and a digest above its cap is made again, smaller.
_CHARS_PER_TOKEN: Final = 3.0
_TRIES: Final = 4
# Of an opening that is kept for a client that drops it later.
_MAX_OPENING_CHARS: Final = 16_384
_SHRINK: Final = 0.95
# A summary is at least 10 % smaller than what it replaces; with its framing it is not larger.
_FRAMING_OF_REPLACED: Final = 0.1
# In a window of a few thousand tokens a summary has more important things to say.
_FRAMING_OF_CAP: Final = 0.2
# 1,600 tokens in a window of 32K.
_RECALLED_OF_WINDOW: Final = 0.05
_RECALLED_OF_FREE: Final = 0.25


class _Added(NamedTuple):
    """What stands beside a summary. tokens: true ones."""

    text: str
    tokens: int


_NOTHING: Final = _Added("", 0)


class Folded(NamedTuple):
    """What a summary was made of. entries: of the messages that the cut replaces."""

    cut: Cut
    entries: Sequence[TranscriptEntry]


class PivotMaker:
    """clock: wall-clock seconds."""

    def __init__(self, sizer: Sizer, lanes: Lanes, clock: Callable[[], float] = time.time) -> None:
        self._sizer = sizer
        self._lanes = lanes
        self._clock = clock

    async def make_summary(self, turn: Turn, situation: Situation, cut: Cut, text: Accepted) -> Pivot:
        """A pivot whose text a model wrote."""
        framing = await self._frame(turn, situation, cut, "summary")
        return await self._make(turn, situation, cut, text, framing, is_digest=False)

    async def make_digest(self, turn: Turn, situation: Situation, cut: Cut) -> Pivot:
        """A pivot made without a model. Never fails; the same history gives the same digest."""
        size_bytes = len(turn.received.body.data)
        entries = await self._lanes.run_steps(turn.owner, size_bytes, read_entries(turn, cut))
        earlier = cut.base.summary if cut.base is not None else None
        framing = await self._frame(turn, situation, cut, "digest")
        most = cut.cap_tokens - framing.tokens
        max_chars = int(most * _CHARS_PER_TOKEN)
        for _ in range(_TRIES):
            text = await self._lanes.run(turn.owner, size_bytes, make_digest, entries, earlier, max_chars)
            raw_tokens = await self._sizer.count(turn.owner, text, turn.policy.estimator)
            tokens = int(raw_tokens * situation.calibrated.ratio)
            if tokens <= most:
                break
            max_chars = int(min(len(text), max_chars) * most / tokens * _SHRINK)
        return await self._make(turn, situation, cut, Accepted(text, tokens), framing, is_digest=True)

    async def append_lists(
        self, turn: Turn, situation: Situation, folded: Folded, summary: str, max_chars: int
    ) -> str:
        """The summary with what a program knows below it: files changed, commands run, and the names and
        numbers that it should have mentioned and that no other message shows.
        """
        base = folded.cut.base
        earlier = base.summary if base is not None else None
        size_bytes = len(turn.received.body.data)
        steps = _read_shown(turn, situation, folded.cut)
        shown = await self._lanes.run_steps(turn.owner, size_bytes, steps)
        messages = situation.conversation.messages[folded.cut.start : folded.cut.covers]
        history = FoldedHistory(messages[: len(folded.entries)], folded.entries, earlier, shown)
        return await self._lanes.run(turn.owner, size_bytes, append_lists, summary, history, max_chars)

    async def make_note(self, turn: Turn, situation: Situation, cut: Cut) -> Pivot:
        """A pivot that drops the old turns; one line of the policy says that something is missing."""
        note = turn.policy.prompts.dropped
        text = Accepted(note, await self._sizer.count(turn.owner, note, turn.policy.estimator))
        framing = await self._frame(turn, situation, cut, "note")
        return await self._make(turn, situation, cut, text, framing, is_digest=True)

    async def _frame(self, turn: Turn, situation: Situation, cut: Cut, kind: TextKind) -> _Added:
        """Empty if the policy wants none, or if it would take too much of what the cut frees."""
        policy = turn.policy
        if not policy.summary.framing:
            return _NOTHING
        text = make_framing(kind, turn.conversation_id if policy.originals.keep else None)
        raw_tokens = await self._sizer.count(turn.owner, text, policy.estimator)
        tokens = ceil(raw_tokens * situation.calibrated.ratio)
        most = min(_FRAMING_OF_REPLACED * cut.replaced_tokens, _FRAMING_OF_CAP * cut.cap_tokens)
        return _Added(text, tokens) if tokens <= most else _NOTHING

    async def _make(
        self,
        turn: Turn,
        situation: Situation,
        cut: Cut,
        text: Accepted,
        framing: _Added,
        *,
        is_digest: bool,
    ) -> Pivot:
        conversation, prompts = situation.conversation, turn.policy.prompts
        opening_end = find_replaceable_start(conversation, keeps_opening=turn.policy.keep.opening)
        earlier = cut.base.question if cut.base is not None else None
        question = (earlier or prompts.question) if opening_end == 0 else None
        framed = Accepted(text.summary, text.tokens + framing.tokens)
        recalled = await self._recall(turn, situation, cut, framed)
        inserted = [framing.text, text.summary, recalled.text, prompts.resume, question or ""]
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
            opening_chars=None,
            opening_tokens=sum(size.tokens for size in situation.sizes.messages[:opening_end]),
            saved_tokens=max(0, cut.replaced_tokens - framed.tokens - recalled.tokens)
            + (cut.base.saved_tokens if cut.base else 0),
            created_seconds=self._clock(),
            is_digest=is_digest,
            opening=await self._read_opening(turn, opening_end),
            conversation=turn.conversation_id,
            framing=framing.text,
            recalled=recalled.text,
        )

    async def _recall(self, turn: Turn, situation: Situation, cut: Cut, text: Accepted) -> _Added:
        """text: the summary, with the tokens of its framing."""
        policy, ratio = turn.policy, situation.calibrated.ratio
        if policy.recall != "auto" or not policy.originals.keep:
            return _NOTHING
        room = _find_room(turn, situation, cut, text.tokens)
        most = int(min(MOST_TOKENS, room / ratio))

        async def count(said: str) -> int:
            return await self._sizer.count(turn.owner, said, policy.estimator)

        recalled = await choose_recalled(turn, self._lanes, text.summary, cut.covers, most, count)
        return _Added(recalled, ceil(await count(recalled) * ratio)) if recalled else _NOTHING

    async def _read_opening(self, turn: Turn, end: int) -> str | None:
        size_bytes = sum(message.size_bytes for message in turn.received.conversation.messages[:end])
        return await self._lanes.run(turn.owner, size_bytes, _read_opening, turn, end) if end else None


def _find_room(turn: Turn, situation: Situation, cut: Cut, summary_tokens: int) -> float:
    """The true tokens that pieces of originals may take: with them, the pivot is smaller than what it
    replaces, and most of the room up to the threshold is left for turns.
    """
    room = SMALLER_SHARE * cut.replaced_tokens - summary_tokens
    thresholds, tokens = situation.thresholds, situation.calibrated.messages
    if thresholds is None:
        return room
    opening = situation.opening_tokens if turn.policy.keep.opening else 0
    sent = situation.calibrated.environment + opening + summary_tokens + sum(tokens[cut.covers :])
    free = _RECALLED_OF_FREE * (thresholds.hard - sent)
    return min(room, free, _RECALLED_OF_WINDOW * thresholds.window)


def _read_shown(turn: Turn, situation: Situation, cut: Cut) -> Steps[list[TranscriptEntry]]:
    """What the messages beside the summary say, as far as they are sent whole."""
    received, conversation = turn.received, situation.conversation
    marked = {mark.position for batch in situation.batches for mark in batch.marks}
    opening = find_replaceable_start(conversation, keeps_opening=turn.policy.keep.opening)
    entries = []
    for position in (
        *range(opening),
        *range(cut.covers, len(conversation.messages)),
    ):
        if position not in marked and not conversation.is_gone(position):
            entries.append(received.format.parse_entry(received.raw(position)))
            yield
    return entries


def _read_opening(turn: Turn, end: int) -> str | None:
    """What the messages before `end` say, cut in the middle if it is long."""
    entries = [turn.received.format.parse_entry(turn.received.raw(position)) for position in range(end)]
    texts = [entry.text for entry in list_entries(entries) if entry.text.strip() and not entry.is_result]
    return cut_middle("\n\n".join(texts), _MAX_OPENING_CHARS) or None
