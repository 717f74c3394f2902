"""Makes pivots: a model's summary, a digest that quotes the history, or a note. Stores nothing.

For a summary it asks the hooks, calls the model and checks its text. A call that rides on the conversation's
own request comes first, where that is cheaper. Whatever goes wrong with it, the history is quoted then as if
there had been none.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, NamedTuple, ParamSpec, TypeVar

from gateway.bounds.lanes import Lanes, Steps
from gateway.compaction.calls import NO_LIMIT, QuotedCalls, RidingCalls, read_entries
from gateway.compaction.client import CallTimedOut, FittedCall, PromptRefused, SummaryClient, SummaryReply
from gateway.conversations.turn import Turn
from gateway.core.compaction.chunks import rebase_on_originals
from gateway.core.compaction.cut import SMALLER_SHARE, Cut
from gateway.core.compaction.request import CompactionRequest, CompactionResult
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import (
    OVER_BUDGET,
    Accepted,
    Candidate,
    Rejected,
    SummaryBounds,
    find_headings,
    judge_summary,
    strip_thinking,
)
from gateway.core.digest.digest import FoldedHistory, make_digest, make_lists
from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.core.history.conversation import find_replaceable_start
from gateway.core.history.lists import NOTHING_TOLD, Told, drop_copied_lists
from gateway.core.history.pivot import Pivot, TextKind, make_framing
from gateway.core.history.transcript import TranscriptEntry, cut_middle, list_entries
from gateway.core.refusal import Overflow
from gateway.core.sizing.usage import Usage, add_usage
from gateway.hooks import Hooks, PreCompact
from gateway.originals.beside_summary import MOST_TOKENS, choose_recalled
from gateway.planning.message_sizes import Sizer

P = ParamSpec("P")
T = TypeVar("T")

# The inserted messages cost this many raw tokens beyond their texts.
_INSERTED_TOKENS: Final = 12
# A first guess for a digest. Its tokens are then counted, and a digest above its cap is made again, smaller.
_CHARS_PER_TOKEN: Final = 3.0
_DIGEST_TRIES: Final = 4
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


class _Added(NamedTuple):
    """What stands beside a summary. tokens: true ones."""

    text: str
    tokens: int


_NO_TEXT: Final = _Added("", 0)


class PivotMaker:
    """clock: wall-clock seconds."""

    def __init__(self, sizer: Sizer, lanes: Lanes, clock: Callable[[], float] = time.time) -> None:
        self._sizer = sizer
        self._lanes = lanes
        self._clock = clock

    async def make_summary(
        self, turn: Turn, situation: Situation, fitted: FittedCall, accepted: Accepted
    ) -> Pivot:
        """A pivot whose text a model wrote. It carries what a program knows beside that: files changed,
        commands run, and the names that the text should have mentioned and that no other message shows.
        Where that would be too much, it has the text alone.
        """
        cut, summary = fitted.cut, drop_copied_lists(accepted.summary)
        max_chars = int(_LISTS_OF_CAP * cut.cap_tokens * _LIST_CHARS_PER_TOKEN)
        history = await self._read_history(turn, situation, cut, fitted.entries)
        told = Told(summary, await self._run(turn, make_lists, summary, history, max_chars))
        tokens = int(await self._count(turn, situation, told.text))
        if tokens > cut.replaced_tokens * SMALLER_SHARE:
            told, tokens = Told(summary), accepted.tokens
        return await self._make(turn, situation, cut, told, tokens, "summary")

    async def make_digest(self, turn: Turn, situation: Situation, cut: Cut) -> Pivot:
        """A pivot made without a model. Never fails; the same history gives the same digest.

        A digest on a digest is made of all originals that the client still sends.
        """
        whole = rebase_on_originals(situation, cut) or cut
        entries = await self._run_steps(turn, read_entries(turn, whole))
        history = await self._read_history(turn, situation, whole, entries)
        most = cut.cap_tokens - (await self._frame(turn, situation, cut, "digest")).tokens
        max_chars = int(most * _CHARS_PER_TOKEN)
        for _ in range(_DIGEST_TRIES):
            told = await self._run(turn, make_digest, history, max_chars)
            tokens = int(await self._count(turn, situation, told.text))
            if tokens <= most:
                break
            max_chars = int(min(len(told.text), max_chars) * most / tokens * _SHRINK)
        return await self._make(turn, situation, cut, told, tokens, "digest")

    async def make_note(self, turn: Turn, situation: Situation, cut: Cut) -> Pivot:
        """A pivot that drops the old turns; one line of the policy says that something is missing."""
        note = turn.policy.prompts.dropped
        tokens = int(await self._count(turn, situation, note))
        return await self._make(turn, situation, cut, Told(note), tokens, "note")

    async def _read_history(
        self, turn: Turn, situation: Situation, cut: Cut, entries: Sequence[TranscriptEntry]
    ) -> FoldedHistory:
        """entries: of the messages that the cut replaces."""
        shown = await self._run_steps(turn, _read_shown(turn, situation, cut))
        messages = situation.conversation.messages[cut.start : cut.covers]
        return FoldedHistory(messages, entries, cut.base.told if cut.base else NOTHING_TOLD, shown)

    async def _count(self, turn: Turn, situation: Situation, text: str) -> float:
        """True tokens."""
        raw_tokens = await self._sizer.count(turn.owner, text, turn.policy.estimator)
        return raw_tokens * situation.calibrated.ratio

    async def _run(self, turn: Turn, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._lanes.run(turn.owner, len(turn.received.body.data), work, *args, **kwargs)

    async def _run_steps(self, turn: Turn, steps: Steps[T]) -> T:
        return await self._lanes.run_steps(turn.owner, len(turn.received.body.data), steps)

    async def _frame(self, turn: Turn, situation: Situation, cut: Cut, kind: TextKind) -> _Added:
        """Empty if the policy wants none, or if it would take too much of what the cut frees."""
        policy = turn.policy
        if not policy.summary.framing:
            return _NO_TEXT
        text = make_framing(kind, turn.conversation_id if policy.originals.keep else None)
        tokens = ceil(await self._count(turn, situation, text))
        most = min(_FRAMING_OF_REPLACED * cut.replaced_tokens, _FRAMING_OF_CAP * cut.cap_tokens)
        return _Added(text, tokens) if tokens <= most else _NO_TEXT

    async def _make(
        self, turn: Turn, situation: Situation, cut: Cut, told: Told, tokens: int, kind: TextKind
    ) -> Pivot:
        """tokens: true ones, of what is told."""
        conversation, prompts = situation.conversation, turn.policy.prompts
        opening_end = find_replaceable_start(conversation, keeps_opening=turn.policy.keep.opening)
        earlier = cut.base.question if cut.base is not None else None
        question = (earlier or prompts.question) if opening_end == 0 else None
        framing = await self._frame(turn, situation, cut, kind)
        tokens += framing.tokens
        recalled = await self._recall(turn, situation, cut, told, tokens)
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
            saved_tokens=max(0, cut.replaced_tokens - tokens - recalled.tokens)
            + (cut.base.saved_tokens if cut.base else 0),
            created_seconds=self._clock(),
            is_digest=kind != "summary",
            opening=await self._run(turn, _read_opening, turn, opening_end) if opening_end else None,
            conversation=turn.conversation_id,
            framing=framing.text,
            recalled=recalled.text,
        )

    async def _recall(self, turn: Turn, situation: Situation, cut: Cut, told: Told, tokens: int) -> _Added:
        """tokens: of what is told, with its framing."""
        policy = turn.policy
        if policy.recall != "auto" or not policy.originals.keep:
            return _NO_TEXT
        most = int(min(MOST_TOKENS, _find_room(situation, cut, tokens) / situation.calibrated.ratio))

        async def count(said: str) -> int:
            return await self._sizer.count(turn.owner, said, policy.estimator)

        recalled = await choose_recalled(turn, self._lanes, told, cut.covers, most, count)
        return _Added(recalled, ceil(await self._count(turn, situation, recalled))) if recalled else _NO_TEXT


def _find_room(situation: Situation, cut: Cut, summary_tokens: int) -> float:
    """The true tokens that pieces of originals may take: with them, the pivot is smaller than what it
    replaces, and most of the room up to the threshold is left for turns.
    """
    room = SMALLER_SHARE * cut.replaced_tokens - summary_tokens
    thresholds, tokens = situation.thresholds, situation.calibrated.messages
    if thresholds is None:
        return room
    opening = situation.opening_tokens if situation.policy.keep.opening else 0
    sent = situation.calibrated.environment + opening + summary_tokens + sum(tokens[cut.covers :])
    free = _RECALLED_OF_FREE * (thresholds.hard - sent)
    return min(room, free, _RECALLED_OF_WINDOW * thresholds.window)


def _read_shown(turn: Turn, situation: Situation, cut: Cut) -> Steps[list[TranscriptEntry]]:
    """What the messages beside the summary say, as far as they are sent whole."""
    received, conversation = turn.received, situation.conversation
    marked = {mark.position for batch in situation.batches for mark in batch.marks}
    opening = find_replaceable_start(conversation, keeps_opening=turn.policy.keep.opening)
    entries = []
    for position in (*range(opening), *range(cut.covers, len(conversation.messages))):
        if position not in marked and not conversation.is_gone(position):
            entries.append(received.format.parse_entry(received.raw(position)))
            yield
    return entries


def _read_opening(turn: Turn, end: int) -> str | None:
    """What the messages before `end` say, cut in the middle if it is long."""
    entries = [turn.received.format.parse_entry(turn.received.raw(position)) for position in range(end)]
    texts = [entry.text for entry in list_entries(entries) if entry.text.strip() and not entry.is_result]
    return cut_middle("\n\n".join(texts), _MAX_OPENING_CHARS) or None


# One retry. If the first prompt may not have fitted, the second has at most this share of it.
_TRIES: Final = 2
_SMALLER_TRY: Final = 0.6
# The same request would get the same response.
_NO_RETRY: Final = ("status 401", "status 403", "status 429")
_TOO_LARGE: Final = Rejected("history too big for the summariser", is_summarizer_fault=False)
_NOTHING: Final = CompactionResult(_TOO_LARGE, 0)
_VETOED: Final = Rejected("vetoed", is_summarizer_fault=False)


@dataclass(slots=True)
class _Attempts:
    """What has been tried for one cut."""

    # How many calls may be made for this cut, and for everything that has to be compacted.
    allowed: int
    calls_in_all: int
    # The next prompt may hold at most this many tokens.
    max_tokens: int = NO_LIMIT
    # What has come of all calls so far.
    result: CompactionResult = _NOTHING

    def note(self, fitted: FittedCall, usage: Usage | None) -> None:
        """A call was made, whatever came of it."""
        before, model = self.result, fitted.model
        self.result = replace(
            before,
            calls=before.calls + 1,
            model=model.model,
            upstream=model.upstream,
            usage=add_usage(before.usage, usage),
            riding_calls=before.riding_calls + fitted.is_riding,
            riding_usage=usage if fitted.is_riding else before.riding_usage,
        )

    def end(self, outcome: Pivot | Rejected) -> CompactionResult:
        """What has come of them, if no other call is made."""
        self.result = replace(self.result, outcome=outcome)
        return self.result


class Summarizer:
    def __init__(
        self,
        client: SummaryClient,
        quoted: QuotedCalls,
        riding: RidingCalls,
        sizer: Sizer,
        pivots: PivotMaker,
        hooks: Hooks,
    ) -> None:
        self._client = client
        self._quoted = quoted
        self._rides = riding
        self._sizer = sizer
        self.pivots = pivots
        self._hooks = hooks

    def is_over_budget(self, turn: Turn) -> bool:
        """Whether this tenant may have no summary now, as far as this process knows."""
        return self._client.is_over_budget(turn.tenant)

    async def summarize(
        self, turn: Turn, situation: Situation, cut: Cut, request: CompactionRequest, pre_tokens: int
    ) -> CompactionResult:
        """Makes at most two calls, one more if upstream does not serve the cheaper model, and one more if the
        first one rides.

        Never raises for what an upstream does. A veto of a hook is a failure without a call. The pivot covers
        less than the cut if one call cannot hold all of it.
        """
        before = PreCompact(
            trigger=request.trigger,
            reason=request.reason,
            custom_instructions=request.instructions or None,
            conversation=turn.conversation_id,
            tenant=turn.tenant.display_name,
            pre_tokens=pre_tokens,
        )
        said = await self._hooks.ask(before)
        if said.veto:
            return CompactionResult(_VETOED, 0)
        added = "\n\n".join(filter(None, (said.instructions, "\n".join(said.context))))
        if added or said.prompt:
            turn = turn.with_instructions(added, said.prompt)
        attempts = _Attempts(_TRIES, request.calls)
        pivot = await self._ride(turn, situation, cut, attempts)
        return attempts.end(pivot) if pivot else await self._try(turn, situation, cut, attempts)

    async def _ride(self, turn: Turn, situation: Situation, cut: Cut, attempts: _Attempts) -> Pivot | None:
        """One call, beside those that may quote the history. None if none rides, or if it failed."""
        fitted = await self._rides.fit(turn, situation, cut)
        if fitted is None:
            return None
        try:
            reply = await self._call(turn, fitted, attempts)
        except UpstreamFailed as error:
            # A client that waits has waited for as long as a quoted call may take, so that one is left out.
            attempts.allowed += not isinstance(error, CallTimedOut)
            if isinstance(error, PromptRefused) and error.overflow is not None:
                self._quoted.learn_from_refusal(fitted, error.overflow)
            self._rides.note_failed(turn, error)
            return None
        if reply is None:
            return None
        attempts.allowed += 1
        verdict = await self._judge(turn, situation, reply.candidate, fitted)
        if isinstance(verdict, Rejected):
            self._rides.note_rejected(turn, verdict.reason)
            return None
        self._rides.note_cost(turn, cut, verdict.tokens, reply.usage)
        return await self.pivots.make_summary(turn, situation, fitted, verdict)

    async def _try(self, turn: Turn, situation: Situation, cut: Cut, attempts: _Attempts) -> CompactionResult:
        """Quotes the history."""
        while attempts.result.calls < attempts.allowed:
            left = max(1, attempts.calls_in_all - attempts.result.calls)
            fitted = await self._quoted.fit(turn, situation, cut, left, attempts.max_tokens)
            if fitted is None:
                break
            candidate = await self._ask(turn, fitted, attempts)
            if candidate is None:
                continue
            verdict = await self._judge(turn, situation, candidate, fitted)
            if isinstance(verdict, Accepted):
                return attempts.end(await self.pivots.make_summary(turn, situation, fitted, verdict))
            attempts.end(verdict)
        return attempts.result

    async def _ask(self, turn: Turn, fitted: FittedCall, attempts: _Attempts) -> Candidate | None:
        """One call. None if it failed; `attempts` then says why, and what the next one may hold."""
        try:
            reply = await self._call(turn, fitted, attempts)
        except UpstreamFailed as error:
            attempts.end(Rejected(str(error)))
            if isinstance(error, ModelUnknown):
                # The conversation's own model is asked instead.
                attempts.allowed += self._quoted.note_unknown(turn, fitted.model)
            elif str(error) in _NO_RETRY:
                attempts.allowed = 0
            elif isinstance(error, PromptRefused):
                attempts.max_tokens = self._learn_from_refusal(fitted, error.overflow)
            return None
        if reply is None:
            attempts.end(OVER_BUDGET)
            attempts.allowed = 0
            return None
        self._quoted.learn(fitted, reply.usage.prompt_tokens if reply.usage is not None else None)
        return reply.candidate

    async def _call(self, turn: Turn, fitted: FittedCall, attempts: _Attempts) -> SummaryReply | None:
        """None if the tenant's budget has no room for it. Raises what the client raises."""
        try:
            reply = await self._client.ask(turn.tenant, fitted)
        except UpstreamFailed:
            attempts.note(fitted, None)
            raise
        if reply is not None:
            attempts.note(fitted, reply.usage)
        return reply

    def _learn_from_refusal(self, fitted: FittedCall, overflow: Overflow | None) -> int:
        """The most tokens that the next prompt may hold."""
        if overflow is not None:
            self._quoted.learn_from_refusal(fitted, overflow)
        smaller = int(fitted.prompt_tokens * _SMALLER_TRY)
        window = (overflow.context or overflow.input) if overflow is not None else None
        return min(smaller, window - fitted.cut.longest_tokens) if window is not None else smaller

    async def _judge(
        self, turn: Turn, situation: Situation, candidate: Candidate, fitted: FittedCall
    ) -> Accepted | Rejected:
        raw = await self._sizer.count(turn.owner, strip_thinking(candidate.text), turn.policy.estimator)
        bounds = SummaryBounds(
            replaced_tokens=fitted.cut.replaced_tokens,
            # A longer summary costs room for turns; a digest in its place would cost what it says.
            cap_tokens=fitted.cut.longest_tokens,
            is_calibrated=situation.known.is_calibrated,
            headings=find_headings(turn.policy.prompts.instruction) if fitted.is_riding else (),
        )
        return judge_summary(candidate, int(raw * situation.calibrated.ratio), bounds)
