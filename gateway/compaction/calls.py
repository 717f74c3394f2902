"""The two calls for a summary: one quotes the history, the other rides on the conversation's own request.

A quoting call goes to the conversation's upstream and model unless the policy names others. A riding call is
the conversation's own request once more, asking for a summary at its end: its provider has just read that
prompt and still has it in its cache, so a call that repeats it byte for byte costs less than a quoted one.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Final, NamedTuple

from gateway.bounds.lanes import Lanes, Steps
from gateway.compaction.client import CallTimedOut, FittedCall, PromptRefused, SummaryCall
from gateway.conversations.turn import Turn
from gateway.core.compaction.chunks import (
    Attempt,
    Quoting,
    ReplacedHistory,
    find_chunk_attempts,
    find_whole_attempts,
    rebase_on_originals,
    shrink_cut,
)
from gateway.core.compaction.cut import Cut, limit_summary
from gateway.core.compaction.plan import make_active_plan
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import choose_summary_model, wants_riding
from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head
from gateway.core.history.transcript import (
    UNKNOWN_ENTRY,
    TranscriptEntry,
    render_earlier_summary,
    render_kept,
    render_transcript,
)
from gateway.core.limits.model_limits import Limits, has_long_window
from gateway.core.policy import Policy
from gateway.core.refusal import Overflow
from gateway.core.sizing.estimate import is_plausible_ratio
from gateway.core.sizing.usage import Usage
from gateway.headers import make_upstream_headers
from gateway.http.target import Upstreams, make_url
from gateway.limits.book import LimitsBook, ServedModel
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.planning.learning import name_served
from gateway.planning.message_sizes import Sizer
from gateway.planning.rewrite import CallMaker
from gateway.settings import UpstreamSettings
from gateway.state import State
from gateway.wire.format import RidingRequest, SummaryRequest
from gateway.wire.registry import FORMATS

_models_log = logging.getLogger("gateway.summary_models")
log = logging.getLogger("gateway.riding")

# The system prompt and the chat template around the parts take about this many raw tokens.
_FRAME_TOKENS: Final = 200
# The whole prompt is counted with this conversation's ratio; the margin is for how much its texts differ.
_MARGIN: Final = 1.1
# Without a calibration a call may be refused once. That costs a moment and gives the ratio, while a larger
# margin may cost a second summary.
_UNCALIBRATED_MARGIN: Final = 1.25
# English takes 1.3 tokens to a word; names and paths take more.
_WORDS_PER_TOKEN: Final = 0.6
# What stays is shown in a small part of the prompt, each text of it in an eighth of that.
_KEPT_SHARE: Final = 0.05
_KEPT_CHARS_PER_TOKEN: Final = 3
_KEPT_TEXTS: Final = 8
# Stands for an unknown window.
NO_LIMIT: Final = 1 << 30
# Providers keep a prompt for at least this long after it was last read (docs/economics.md).
_WARM_SECONDS: Final = 300.0
# A model that has answered something else than a summary does so again, but models change.
_AVOID_SECONDS: Final = 3_600.0
# A server that failed may fail at every such request, or at this one only.
_AVOID_BRIEFLY_SECONDS: Final = 300.0
# These say nothing about the model.
_BROKEN_REPLIES: Final = ("error", "unfinished")
_MESSAGE_FRAME_TOKENS: Final = 16
_KEPT: Final = "{kept}"
# An upstream may get new models; asking again costs one refused call.
_FORGET_SECONDS: Final = 3_600.0
# What is known of models: few are asked for summaries.
_MODELS_BYTES: Final = 1 << 18
_MODEL_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 250


class QuotedCalls:
    """clock: seconds that never go back."""

    def __init__(
        self,
        upstreams: Upstreams,
        limits: LimitsBook,
        sizer: Sizer,
        lanes: Lanes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upstreams = upstreams
        self._limits = limits
        self._sizer = sizer
        self._lanes = lanes
        self._clock = clock
        # True tokens per raw token in earlier calls. Used for the size of the next call only.
        self._ratios: Lru[ServedModel, float] = Lru(_MODELS_BYTES)
        # Models that an upstream does not serve, until the time beside each.
        self._unknown: Lru[ServedModel, float] = Lru(_MODELS_BYTES)

    async def fit(
        self, turn: Turn, situation: Situation, cut: Cut, calls: int, max_tokens: int = NO_LIMIT
    ) -> FittedCall | None:
        """The call that quotes the history most fully within the summarizer's window; None if none fits.

        calls: how many may be made for the whole cut; 0 if one must hold all of it. max_tokens: of a prompt.
        Messages behind a digest are summarized from the originals if one call holds them.
        """
        originals = rebase_on_originals(situation, cut)
        if originals is not None:
            fitted = await self._fit(turn, situation, originals, 0, max_tokens)
            if fitted is not None:
                return fitted
        return await self._fit(turn, situation, cut, calls, max_tokens)

    async def _fit(
        self, turn: Turn, situation: Situation, cut: Cut, calls: int, max_tokens: int
    ) -> FittedCall | None:
        upstream = self._upstreams.find(turn.policy.summary.upstream or "", turn.owner) or turn.upstream
        model = self._choose_model(turn, upstream.name)
        ratio = self._choose_ratio(model, situation)
        limits = await self._load_limits(turn, model)
        cut = limit_summary(cut, limits.output)
        window = (limits.context or NO_LIMIT) - cut.longest_tokens
        most = min(window, limits.input or NO_LIMIT, max_tokens)
        size_bytes = len(turn.received.body.data)
        entries = await self._lanes.run_steps(turn.owner, size_bytes, read_entries(turn, cut))
        sizes = situation.sizes.messages[cut.start : cut.covers]
        history = ReplacedHistory(situation.conversation, cut, entries, sizes)
        # How the messages begin that stay behind the summary.
        kept_chars = min(turn.policy.summary.kept_chars, int(_KEPT_SHARE * most * _KEPT_CHARS_PER_TOKEN))
        staying = await self._lanes.run_steps(
            turn.owner, size_bytes, _read_kept(turn, cut.covers, kept_chars)
        )
        kept = render_kept(staying, kept_chars // _KEPT_TEXTS, kept_chars)
        frame = await self._count(turn, make_parts(turn.policy, cut, (), Quoting()))
        kept_tokens = await self._sizer.count(turn.owner, kept, turn.policy.estimator) if kept else 0
        attempts = await self._lanes.run(
            turn.owner, size_bytes, _list_attempts, history, most / ratio - frame, kept_tokens, calls
        )
        for attempt in attempts:
            part = shrink_cut(situation.calibrated, cut, attempt.covers)
            quoted = entries[: part.covers - part.start]
            parts = await self._lanes.run(
                turn.owner,
                size_bytes,
                make_parts,
                turn.policy,
                part,
                quoted,
                attempt.quoting,
                # Behind a part of the history stands the rest of it.
                kept if part.covers == cut.covers else "",
            )
            raw = await self._count(turn, parts)
            prompt = int(raw * ratio)
            if prompt <= most:
                room = min(window + part.longest_tokens - prompt, limits.output or NO_LIMIT)
                call = make_call(turn, upstream, model.model, parts, cap=part.longest_tokens, room=room)
                return FittedCall(call, part, quoted, prompt, raw, model)
        return None

    def learn(self, fitted: FittedCall, prompt_tokens: int | None) -> None:
        """Learns from upstream's count of a prompt. One that rides says nothing about quoted histories."""
        if fitted.is_riding:
            return
        ratio = (prompt_tokens or 0) / fitted.raw_tokens
        if is_plausible_ratio(ratio):
            self._ratios.put(fitted.model, ratio, _MODEL_WEIGHT_BYTES + weigh_texts(fitted.model.model))

    def learn_from_refusal(self, fitted: FittedCall, overflow: Overflow) -> None:
        """Learns the summarizer's window, and the size of the prompt that did not fit."""
        self.learn(fitted, overflow.prompt_tokens)
        proven = Limits(context=overflow.context, input=overflow.input)
        if proven.context or proven.input:
            self._limits.learn(fitted.model, proven)

    def _choose_ratio(self, model: ServedModel, situation: Situation) -> float:
        """True tokens to a raw one, with a margin, by this model's earlier calls or by the conversation."""
        known = self._ratios.get(model)
        if known is not None:
            return known * _MARGIN
        margin = _MARGIN if situation.known.is_calibrated else _UNCALIBRATED_MARGIN
        return situation.calibrated.ratio * margin

    async def _count(self, turn: Turn, parts: tuple[str, ...]) -> int:
        estimator = turn.policy.estimator
        return _FRAME_TOKENS + sum([await self._sizer.count(turn.owner, text, estimator) for text in parts])

    async def _load_limits(self, turn: Turn, model: ServedModel) -> Limits:
        """The long window counts only if the client's own headers ask for it."""
        is_own = model.upstream == turn.upstream.name
        if is_own and model.model == turn.model:
            return turn.limits
        is_long = is_own and has_long_window(model.model, turn.raw_headers)
        return await self._limits.load(model._replace(has_long_window=is_long))

    def _choose_model(self, turn: Turn, upstream: str) -> ServedModel:
        chosen = ServedModel(turn.owner, upstream, choose_summary_model(turn.policy.summary, turn.model))
        is_unknown = self._clock() < (self._unknown.get(chosen) or 0.0)
        return chosen._replace(model=turn.model) if is_unknown else chosen

    def note_unknown(self, turn: Turn, unknown: ServedModel) -> bool:
        """True if another model is to be asked now. A model that the policy names is never replaced."""
        if unknown.model == turn.model or turn.policy.summary.model is not None:
            return False
        weight = _MODEL_WEIGHT_BYTES + weigh_texts(unknown.model)
        self._unknown.put(unknown, self._clock() + _FORGET_SECONDS, weight)
        _models_log.info(
            "summary model %s is unknown at %s: asking the conversation's own",
            unknown.model,
            unknown.upstream,
        )
        return True


class _Room(NamedTuple):
    """Tokens of the request and of the prompt that is made of it, at most, and what the window and the model
    allow for the reply.
    """

    sent: int
    prompt: int
    reply: int


class RidingCalls:
    """clock: seconds since 1970."""

    def __init__(
        self,
        state: State,
        calls: CallMaker,
        sizer: Sizer,
        lanes: Lanes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._calls = calls
        self._sizer = sizer
        self._lanes = lanes
        self._clock = clock
        # Models whose riding calls failed, until the time beside each.
        self._avoided: Lru[ServedModel, float] = Lru(_MODELS_BYTES)

    async def fit(self, turn: Turn, situation: Situation, cut: Cut) -> FittedCall | None:
        """The call for all of a cut. None if the history has to be quoted."""
        answered = self._find_answered(turn)
        if answered is None or not self._may_ride(turn, situation, cut):
            return None
        # The model of the conversation writes it.
        cut = limit_summary(cut, turn.limits.output)
        message = _make_riding_message(turn.policy, cut, situation.conversation)
        raw_tokens = await self._sizer.count(turn.owner, message, turn.policy.estimator)
        room = _find_room(turn, situation, answered, raw_tokens)
        if room is None or room.reply < cut.longest_tokens:
            return None
        # It has to cost less than what the cut replaces, which is quoted otherwise. The message comes to
        # both. What is new in the request is not in the cache.
        cached = min(answered.prompt_tokens or room.sent, room.sent)
        if turn.rates.read * cached + room.sent - cached > cut.replaced_tokens:
            return None
        plan = replace(make_active_plan(situation), output=None)
        sent = await self._calls.make_body(turn, plan, adds_usage=self._calls.adds_usage(turn))
        asked = RidingRequest(message=message, cap_tokens=cut.longest_tokens, room_tokens=room.reply)
        body = await self._lanes.run(turn.owner, len(sent), turn.received.format.ride, sent, asked)
        if body is None:
            return None
        entries = await self._lanes.run_steps(turn.owner, len(sent), read_entries(turn, cut))
        call = make_call(turn, turn.upstream, turn.model, (message,), cap=cut.longest_tokens, room=room.reply)
        model = name_served(turn)
        return FittedCall(replace(call, riding=body), cut, entries, room.prompt, raw_tokens, model)

    def _may_ride(self, turn: Turn, situation: Situation, cut: Cut) -> bool:
        return (
            wants_riding(turn.policy, turn.model, turn.upstream.name)
            and turn.rates.caches
            and turn.purpose in ("main", "agent")
            # A command is not for the model, and what is sent would end with it.
            and turn.command is None
            # Where the request brings the history that it continues, what is sent is made of it.
            and (turn.raw_body is turn.received.body.data or "Content-Encoding" in turn.upstream_head.headers)
            and _builds_on_what_is_sent(situation, cut)
            and self._clock() >= (self._avoided.get(name_served(turn)) or 0.0)
        )

    def _find_answered(self, turn: Turn) -> Head | None:
        """The newest response of the branch, if it came a moment ago, with the same tools and by the same
        model: then the cache is warm.
        """
        head = self._state.heads.find(turn.received.conversation, turn.scope)
        if head is None or head.ledger is None or head.scope != turn.scope:
            return None
        # Clocks of replicas differ by seconds. One that was set back by more says nothing.
        age_seconds = abs(self._clock() - head.ledger.answered_seconds)
        return head if age_seconds <= _WARM_SECONDS else None

    def note_rejected(self, turn: Turn, reason: str) -> None:
        """The reply to a riding call was no summary."""
        self._avoid(turn, reason, _AVOID_BRIEFLY_SECONDS if reason in _BROKEN_REPLIES else _AVOID_SECONDS)

    def note_failed(self, turn: Turn, error: Exception) -> None:
        """No reply came. A request that is refused as it is would be refused again, and a model that thinks
        for too long, as its client wants it to, would do so again. A window that the refusal tells is known
        from now on.
        """
        overflow = error.overflow if isinstance(error, PromptRefused) else None
        if overflow is not None and (overflow.context or overflow.input):
            log.info("a riding summary failed (%s): the history is quoted", error)
            return
        is_sure = isinstance(error, PromptRefused | CallTimedOut)
        self._avoid(turn, str(error), _AVOID_SECONDS if is_sure else _AVOID_BRIEFLY_SECONDS)

    def note_cost(self, turn: Turn, cut: Cut, summary_tokens: int, usage: Usage | None) -> None:
        """The reply was a summary. If it cost more than one that quotes, the cache was not what its price
        promises, or the model thought for longer than it is worth. Some upstreams do not report it.
        """
        if usage is None or usage.cached_tokens is None:
            return
        quoted = cut.replaced_tokens + turn.rates.output * summary_tokens
        if turn.rates.weigh(usage) > quoted:
            self._avoid(turn, "it cost more than a quoted one", _AVOID_SECONDS)

    def _avoid(self, turn: Turn, reason: str, seconds: float) -> None:
        """Quotes the history to this model for so long."""
        log.info("no summary of this model rides for %.0f minutes: %s", seconds / 60, reason)
        weight = _MODEL_WEIGHT_BYTES + weigh_texts(turn.model)
        self._avoided.put(name_served(turn), self._clock() + seconds, weight)


# What a call says, and where it goes


def make_call(
    turn: Turn, upstream: UpstreamSettings, model: str, parts: tuple[str, ...], *, cap: int, room: int
) -> SummaryCall:
    """For the conversation's own upstream, or for the one that the policy names."""
    is_own, own = upstream.name == turn.upstream.name, turn.received.format
    # The conversation's own format if the upstream supports it.
    supported = [wire_format for wire_format in FORMATS.values() if wire_format.name in upstream.formats]
    wire_format = own if is_own or own in supported or not supported else supported[0]
    envelope = turn.received.body.envelope
    output_key = envelope.requested_key if wire_format is own else ""
    # Another upstream gets no header of the client, only what its API requires of every request.
    headers = make_upstream_headers(turn.raw_headers if is_own else (), upstream, wire_format.path)
    for name, value in wire_format.headers:
        headers.setdefault(name, value)
    return SummaryCall(
        upstream=upstream,
        format=wire_format,
        url=str(turn.url if is_own else make_url(upstream, wire_format.path)),
        headers=tuple(headers.items()),
        request=SummaryRequest(
            model=model,
            system=turn.policy.prompts.system,
            parts=parts,
            output_key=output_key or wire_format.output_key,
            cap=cap,
            room=room,
            identity_blocks=envelope.identity_blocks if is_own else (),
        ),
        timeout_seconds=turn.policy.summary.timeout_seconds,
    )


def make_parts(
    policy: Policy, cut: Cut, entries: Sequence[TranscriptEntry], quoting: Quoting, kept: str = ""
) -> tuple[str, ...]:
    """The user message of a summary call: the question, the history as data, the instruction at the end.

    kept: how what stays behind the summary begins, in its fence; empty to leave that out.
    """
    prompts, summary = policy.prompts, policy.summary
    parts = [prompts.question]
    if cut.base is not None:
        parts.append(render_earlier_summary(cut.base.told.text))
    tool_chars = _smaller(quoting.tool_chars, summary.message_chars)
    text_chars = _smaller(quoting.text_chars, summary.message_chars)
    parts.append(render_transcript(entries, tool_chars, text_chars))
    parts.append(kept)
    parts.append("\n".join(summary.extra_context))
    return tuple(part for part in (*parts, make_instruction(policy, cut)) if part.strip())


def make_instruction(policy: Policy, cut: Cut) -> str:
    """What ends every summary call."""
    instruction, more = policy.prompts.instruction, policy.summary.instructions
    if more:
        instruction = f"{instruction}\n\n{more}"
    # A text that is too long is truncated and rejected, so the model is told a length.
    return f"{instruction}\n\nWrite at most {int(_WORDS_PER_TOKEN * cut.cap_tokens)} words."


def read_entries(turn: Turn, cut: Cut) -> Steps[list[TranscriptEntry]]:
    """What the messages of a cut say, as the client sent them, without marks. Parses each of them."""
    entries, received = [], turn.received
    for position in range(cut.start, cut.covers):
        if received.conversation.is_gone(position):
            entries.append(UNKNOWN_ENTRY)
            continue
        entries.append(received.format.parse_entry(received.raw(position)))
        yield
    return entries


def _read_kept(turn: Turn, start: int, most_chars: int) -> Steps[list[TranscriptEntry]]:
    """The first messages that stay, as many as there may be room for."""
    entries, received, room = [], turn.received, most_chars
    # A command to the gateway is the newest message, and not for the model.
    end = len(received.conversation.messages) - (1 if turn.command is not None else 0)
    for position in range(start, end):
        if room <= 0:
            break
        if not received.conversation.is_gone(position):
            entries.append(received.format.parse_entry(received.raw(position)))
            # Longer texts are cut, so that several messages are shown.
            room -= min(received.conversation.messages[position].size_bytes, most_chars // _KEPT_TEXTS)
            yield
    return entries


def _smaller(first: int | None, second: int | None) -> int | None:
    """None stands for no limit."""
    return min((each for each in (first, second) if each is not None), default=None)


def _list_attempts(
    history: ReplacedHistory, room_tokens: float, kept_tokens: int, calls: int
) -> list[Attempt]:
    """What stays behind the summary is shown with the end of the history only, so chunks have more room."""
    attempts = list(find_whole_attempts(history, room_tokens - kept_tokens))
    return [*attempts, *find_chunk_attempts(history, room_tokens, calls)] if calls else attempts


# Whether a call may ride


def _make_riding_message(policy: Policy, cut: Cut, conversation: Conversation) -> str:
    """The last message of a riding call."""
    # Messages behind the cut. What the model has recalled among them is not counted.
    kept = conversation.index(len(conversation.messages)) - conversation.index(cut.covers)
    ride, summary = policy.prompts.ride.replace(_KEPT, str(kept)), policy.summary
    parts = (ride, "\n".join(summary.extra_context), make_instruction(policy, cut))
    return "\n\n".join(part for part in parts if part.strip())


def _builds_on_what_is_sent(situation: Situation, cut: Cut) -> bool:
    """A digest is not built on: originals are better. A pivot that was never sent is in no cache."""
    sticky, base = situation.sticky, cut.base
    if sticky is None or base is None:
        return sticky is base
    return not sticky.is_digest and (sticky.key, sticky.version) == (base.key, base.version)


def _find_room(turn: Turn, situation: Situation, answered: Head, raw_tokens: int) -> _Room | None:
    """None if the prompt alone is too large. answered: of this very request, or of the one before."""
    sent = answered.prompt_tokens
    if not sent or answered.key != situation.conversation.key.hex():
        if situation.in_tokens is not None:
            # Bytes or pictures are what it has too much of, and those of a body that was never sent.
            return None
        estimate = situation.estimate(situation.view(situation.sticky, situation.batches))
        sent = estimate.tokens + estimate.unsure
    message = ceil((_MESSAGE_FRAME_TOKENS + raw_tokens) * situation.calibrated.ratio * _MARGIN)
    prompt = sent + message
    if prompt > (turn.limits.input or NO_LIMIT):
        return None
    left = (turn.limits.context or NO_LIMIT) - prompt
    return _Room(sent, prompt, min(left, turn.limits.output or NO_LIMIT))
