"""Makes pivots: from a model's summary, from a digest that quotes the history, or from a note.

Stores nothing.
"""

import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final, NamedTuple, ParamSpec, TypeVar

from gateway.bounds.lanes import Lanes, Steps
from gateway.compaction.calls import read_entries
from gateway.conversations.turn import Turn
from gateway.core.compaction.chunks import rebase_on_originals
from gateway.core.compaction.cut import SMALLER_SHARE, Cut
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import Accepted
from gateway.core.digest.digest import make_digest
from gateway.core.digest.work import FoldedHistory, make_lists
from gateway.core.history.conversation import find_replaceable_start
from gateway.core.history.framing import TextKind, make_framing
from gateway.core.history.lists import NOTHING_TOLD, Told, drop_copied_lists
from gateway.core.history.pivot import Pivot
from gateway.core.history.transcript import TranscriptEntry, cut_middle, list_entries
from gateway.originals.beside_summary import MOST_TOKENS, choose_recalled
from gateway.planning.message_sizes import Sizer

P = ParamSpec("P")
T = TypeVar("T")

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
# What is listed below a summary gets at most this share of its cap. A token of it takes about so many
# characters.
_LISTS_OF_CAP: Final = 0.2
_LIST_CHARS_PER_TOKEN: Final = 2.5


class _Counted(NamedTuple):
    """Something that is sent. tokens: true ones."""

    told: Told
    tokens: int


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

    async def make_summary(
        self, turn: Turn, situation: Situation, folded: Folded, accepted: Accepted
    ) -> Pivot:
        """A pivot whose text a model wrote. It carries what a program knows beside that: files changed,
        commands run, and the names that the text should have mentioned and that no other message shows.
        Where that would be too much, it has the text alone.
        """
        cut, summary = folded.cut, drop_copied_lists(accepted.summary)
        max_chars = int(_LISTS_OF_CAP * cut.cap_tokens * _LIST_CHARS_PER_TOKEN)
        history = await self._read_history(turn, situation, folded)
        lists = await self._run(turn, make_lists, summary, history, max_chars)
        listed = await self._count(turn, situation, Told(summary, lists))
        if listed.tokens > cut.replaced_tokens * SMALLER_SHARE:
            listed = _Counted(Told(summary), accepted.tokens)
        return await self._make(turn, situation, cut, listed, "summary")

    async def make_digest(self, turn: Turn, situation: Situation, cut: Cut) -> Pivot:
        """A pivot made without a model. Never fails; the same history gives the same digest.

        A digest on a digest is made of all originals that the client still sends.
        """
        originals = rebase_on_originals(cut, situation.conversation, situation.pivots, situation.calibrated)
        whole = originals or cut
        entries = await self._run_steps(turn, read_entries(turn, whole))
        history = await self._read_history(turn, situation, Folded(whole, entries))
        most = cut.cap_tokens - (await self._frame(turn, situation, cut, "digest")).tokens
        max_chars = int(most * _CHARS_PER_TOKEN)
        for _ in range(_TRIES):
            told = await self._run(turn, make_digest, history, max_chars)
            counted = await self._count(turn, situation, told)
            if counted.tokens <= most:
                break
            max_chars = int(min(len(told.text), max_chars) * most / counted.tokens * _SHRINK)
        return await self._make(turn, situation, cut, counted, "digest")

    async def make_note(self, turn: Turn, situation: Situation, cut: Cut) -> Pivot:
        """A pivot that drops the old turns; one line of the policy says that something is missing."""
        note = await self._count(turn, situation, Told(turn.policy.prompts.dropped))
        return await self._make(turn, situation, cut, note, "note")

    async def _read_history(self, turn: Turn, situation: Situation, folded: Folded) -> FoldedHistory:
        shown = await self._run_steps(turn, _read_shown(turn, situation, folded.cut))
        cut, base = folded.cut, folded.cut.base
        messages = situation.conversation.messages[cut.start : cut.covers][: len(folded.entries)]
        return FoldedHistory(messages, folded.entries, base.told if base is not None else NOTHING_TOLD, shown)

    async def _count(self, turn: Turn, situation: Situation, told: Told) -> _Counted:
        raw_tokens = await self._sizer.count(turn.owner, told.text, turn.policy.estimator)
        return _Counted(told, int(raw_tokens * situation.calibrated.ratio))

    async def _run(self, turn: Turn, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._lanes.run(turn.owner, len(turn.received.body.data), work, *args, **kwargs)

    async def _run_steps(self, turn: Turn, steps: Steps[T]) -> T:
        return await self._lanes.run_steps(turn.owner, len(turn.received.body.data), steps)

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
        self, turn: Turn, situation: Situation, cut: Cut, counted: _Counted, kind: TextKind
    ) -> Pivot:
        conversation, prompts, told = situation.conversation, turn.policy.prompts, counted.told
        opening_end = find_replaceable_start(conversation, keeps_opening=turn.policy.keep.opening)
        earlier = cut.base.question if cut.base is not None else None
        question = (earlier or prompts.question) if opening_end == 0 else None
        framing = await self._frame(turn, situation, cut, kind)
        framed = _Counted(told, counted.tokens + framing.tokens)
        recalled = await self._recall(turn, situation, cut, framed)
        inserted = [framing.text, told.text, recalled.text, prompts.resume, question or ""]
        return Pivot(
            owner=turn.owner,
            key=conversation.chain[cut.covers].hex(),
            covers=cut.covers,
            opening_end=opening_end,
            summary=told.summary,
            lists=told.lists,
            question=question,
            resume=prompts.resume,
            tokens=_INSERTED_TOKENS
            + sum([await self._sizer.count(turn.owner, part, turn.policy.estimator) for part in inserted]),
            opening_tokens=sum(size.tokens for size in situation.sizes.messages[:opening_end]),
            saved_tokens=max(0, cut.replaced_tokens - framed.tokens - recalled.tokens)
            + (cut.base.saved_tokens if cut.base else 0),
            created_seconds=self._clock(),
            is_digest=kind != "summary",
            opening=await self._read_opening(turn, opening_end),
            conversation=turn.conversation_id,
            framing=framing.text,
            recalled=recalled.text,
        )

    async def _recall(self, turn: Turn, situation: Situation, cut: Cut, framed: _Counted) -> _Added:
        """framed: what is told, with the tokens of its framing."""
        policy, ratio = turn.policy, situation.calibrated.ratio
        if policy.recall != "auto" or not policy.originals.keep:
            return _NOTHING
        room = _find_room(turn, situation, cut, framed.tokens)
        most = int(min(MOST_TOKENS, room / ratio))

        async def count(said: str) -> int:
            return await self._sizer.count(turn.owner, said, policy.estimator)

        recalled = await choose_recalled(turn, self._lanes, framed.told, cut.covers, most, count)
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
