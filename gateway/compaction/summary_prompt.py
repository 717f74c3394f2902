"""Builds the call for a summary: what it says, where it goes, and how much of a history it can hold.

It goes to the conversation's upstream and model unless the policy names others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.bounds.lanes import Lanes, Steps
from gateway.compaction.summary_client import SummaryCall, SummaryModels
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
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.situation import Situation
from gateway.core.history.transcript import (
    UNKNOWN_ENTRY,
    TranscriptEntry,
    render_earlier_summary,
    render_kept,
    render_transcript,
)
from gateway.core.limits.model_limits import Limits, has_long_window
from gateway.core.policy import Policy
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.estimate import is_plausible_ratio
from gateway.headers import make_upstream_headers
from gateway.http.target import Upstreams, make_url
from gateway.limits.book import LimitsBook, ServedModel
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.planning.message_sizes import Sizer
from gateway.settings import UpstreamSettings
from gateway.wire.format import Format, SummaryRequest
from gateway.wire.registry import FORMATS

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
_RATIOS_BYTES: Final = 1 << 18
_RATIO_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 250


@dataclass(frozen=True, slots=True)
class FittedCall:
    """A call whose prompt fits the summarizer's window."""

    call: SummaryCall
    # The messages that it covers, and what they say.
    cut: Cut
    entries: Sequence[TranscriptEntry]
    # The size of the prompt: estimated with a margin, and by our own count.
    prompt_tokens: int
    raw_tokens: int
    # The model that counts them.
    model: ServedModel

    @property
    def is_riding(self) -> bool:
        """Its prompt is that of the conversation's own request, which is read from the cache, and a message.

        The raw tokens are those of the message alone.
        """
        return self.call.riding is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallBudget:
    # How many calls may be made for the whole cut; 0 if one call must hold all of it.
    calls: int
    # One prompt may hold at most this many tokens.
    max_tokens: int = NO_LIMIT


class SummaryCallBuilder:
    def __init__(
        self, upstreams: Upstreams, limits: LimitsBook, sizer: Sizer, models: SummaryModels, lanes: Lanes
    ) -> None:
        self._upstreams = upstreams
        self._limits = limits
        self._sizer = sizer
        self._models = models
        self._lanes = lanes
        # True tokens per raw token in earlier calls. Used for the size of the next call only.
        self._ratios: Lru[ServedModel, float] = Lru(_RATIOS_BYTES)

    async def fit(self, turn: Turn, situation: Situation, cut: Cut, budget: CallBudget) -> FittedCall | None:
        """The call that quotes the history most fully within the summarizer's window; None if none fits.

        Messages behind a digest are summarized from the originals if one call holds them.
        """
        originals = rebase_on_originals(cut, situation.conversation, situation.pivots, situation.calibrated)
        if originals is not None:
            fitted = await self._fit(turn, situation, originals, replace(budget, calls=0))
            if fitted is not None:
                return fitted
        return await self._fit(turn, situation, cut, budget)

    async def _fit(self, turn: Turn, situation: Situation, cut: Cut, budget: CallBudget) -> FittedCall | None:
        upstream = self._upstreams.find(turn.policy.summary.upstream or "", turn.owner) or turn.upstream
        model = self._models.choose(turn, upstream.name)
        ratio = self._choose_ratio(model, situation)
        limits = await self._load_limits(turn, model)
        window = (limits.context or NO_LIMIT) - cut.longest_tokens
        most = min(window, limits.input or NO_LIMIT, budget.max_tokens)
        size_bytes = len(turn.received.body.data)
        entries = await self._lanes.run_steps(turn.owner, size_bytes, read_entries(turn, cut))
        sizes = situation.sizes.messages[cut.start : cut.covers]
        history = ReplacedHistory(situation.conversation, cut, entries, sizes)
        kept = await self._render_kept(turn, cut, int(_KEPT_SHARE * most * _KEPT_CHARS_PER_TOKEN))
        frame = await self._count(turn, make_parts(turn.policy, cut, (), Quoting()))
        kept_tokens = await self._sizer.count(turn.owner, kept, turn.policy.estimator) if kept else 0
        attempts = await self._lanes.run(
            turn.owner, size_bytes, _list_attempts, history, most / ratio - frame, kept_tokens, budget.calls
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
                room = window + part.longest_tokens - prompt
                call = make_call(turn, upstream, model.model, parts, cap=part.longest_tokens, room=room)
                return FittedCall(call, part, quoted, prompt, raw, model)
        return None

    async def _render_kept(self, turn: Turn, cut: Cut, most_chars: int) -> str:
        """How the messages begin that stay behind the summary."""
        most_chars = min(turn.policy.summary.kept_chars, most_chars)
        steps = _read_kept(turn, cut.covers, most_chars)
        kept = await self._lanes.run_steps(turn.owner, len(turn.received.body.data), steps)
        return render_kept(kept, most_chars // _KEPT_TEXTS, most_chars)

    def learn(self, fitted: FittedCall, prompt_tokens: int | None) -> None:
        """Learns from upstream's count of a prompt. One that rides says nothing about quoted histories."""
        if fitted.is_riding:
            return
        ratio = (prompt_tokens or 0) / fitted.raw_tokens
        if is_plausible_ratio(ratio):
            self._ratios.put(fitted.model, ratio, _RATIO_WEIGHT_BYTES + weigh_texts(fitted.model.model))

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


def make_call(
    turn: Turn, upstream: UpstreamSettings, model: str, parts: tuple[str, ...], *, cap: int, room: int
) -> SummaryCall:
    """For the conversation's own upstream, or for the one that the policy names."""
    is_own = upstream.name == turn.upstream.name
    wire_format = _choose_format(turn, upstream)
    envelope = turn.received.body.envelope
    output_key = envelope.requested_key if wire_format is turn.received.format else ""
    return SummaryCall(
        upstream=upstream,
        format=wire_format,
        url=str(turn.url if is_own else make_url(upstream, wire_format.path)),
        headers=_choose_headers(turn, upstream, wire_format),
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
        parts.append(render_earlier_summary(cut.base.summary))
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


def _choose_format(turn: Turn, upstream: UpstreamSettings) -> Format:
    """The conversation's own format if the upstream supports it."""
    own = turn.received.format
    supported = [wire_format for wire_format in FORMATS.values() if wire_format.name in upstream.formats]
    is_own = upstream.name == turn.upstream.name
    return own if is_own or own in supported or not supported else supported[0]


def _choose_headers(
    turn: Turn, upstream: UpstreamSettings, wire_format: Format
) -> tuple[tuple[str, str], ...]:
    """Another upstream gets no header of the client, only what its API requires of every request."""
    is_own = upstream.name == turn.upstream.name
    headers = make_upstream_headers(turn.raw_headers if is_own else (), upstream, wire_format.path)
    for name, value in wire_format.headers:
        headers.setdefault(name, value)
    return tuple(headers.items())
