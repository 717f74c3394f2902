"""Which call for a summary fits the summariser's window, and what it says.

Goes where the conversation goes, with the client's own end-to-end headers, unless the policy names another
upstream or model.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.compaction.summary_client import Assignment, SummaryModels
from gateway.conversations.turn import Turn
from gateway.core.compaction.chunks import (
    Attempt,
    FoldedHistory,
    Quoting,
    find_chunks,
    find_whole,
    from_originals,
    shrink_cut,
)
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.plan import Situation
from gateway.core.history.transcript import TranscriptEntry, render_earlier_summary, render_transcript
from gateway.core.limits.model_limits import Limits, has_long_window
from gateway.core.policy import Policy
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.calibrated_sizes import CalibratedSizes, calibrate_sizes
from gateway.core.sizing.estimate import is_plausible_ratio
from gateway.headers import make_upstream_headers
from gateway.limits.book import LimitsBook
from gateway.lru import Lru
from gateway.planning.message_sizes import Sizer
from gateway.settings import UpstreamSettings
from gateway.upstream.target import Upstreams, make_url
from gateway.wire.formats.registry import FORMATS
from gateway.wire.wire_format import SummaryRequest, WireFormat

# System prompt and chat template around the parts, in raw tokens.
_FRAME_TOKENS: Final = 200
# The prompt is counted whole with this conversation's own ratio: what is left is how its texts differ.
_MARGIN: Final = 1.1
# Before that a call may be refused once: it costs a moment and tells the ratio, where a call more costs a
# summary.
_UNCALIBRATED_MARGIN: Final = 1.25
# English takes 1.3 tokens to a word; names and paths take more.
_WORDS_PER_TOKEN: Final = 0.6
# Stands for a window that nobody knows.
NO_LIMIT: Final = 1 << 30
_RATIOS_BYTES: Final = 1 << 18
_RATIO_WEIGHT_BYTES: Final = 300

# Tenant, upstream and model of a summariser.
_Meter = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class FittedCall:
    """A call that fits. cut: what it covers. spoken: what that says. ratio: true per raw tokens of the
    conversation.

    prompt_tokens: with the margin; raw_tokens: as we count them. meter: whose tokens those are.
    """

    assignment: Assignment
    cut: Cut
    spoken: Sequence[TranscriptEntry]
    ratio: float
    prompt_tokens: int
    raw_tokens: int
    meter: _Meter


@dataclass(frozen=True, kw_only=True, slots=True)
class CallBudget:
    """calls: how many may be made for the whole cut. most_tokens: of one prompt."""

    calls: int
    most_tokens: int = NO_LIMIT


class SummaryCallBuilder:
    def __init__(self, upstreams: Upstreams, limits: LimitsBook, sizer: Sizer, models: SummaryModels) -> None:
        self._upstreams = upstreams
        self._limits = limits
        self._sizer = sizer
        self._models = models
        # What summarisers told of their prompts: for the size of the next one, and for nothing else.
        self._ratios: Lru[_Meter, float] = Lru(_RATIOS_BYTES)

    async def fit(self, turn: Turn, cut: Cut, situation: Situation, wish: CallBudget) -> FittedCall | None:
        """The mildest attempt that the summariser's window holds.

        What a digest covers is summarised from the originals, if one call holds them.
        """
        weights = calibrate_sizes(situation.conversation, situation.sizes, situation.known)
        originals = from_originals(cut, situation.pivots, weights)
        if originals is not None:
            found = await self._fit(turn, originals, situation, weights, replace(wish, calls=0))
            if found is not None:
                return found
        return await self._fit(turn, cut, situation, weights, wish)

    async def _fit(
        self, turn: Turn, cut: Cut, situation: Situation, weights: CalibratedSizes, wish: CallBudget
    ) -> FittedCall | None:
        """With no call to spare, all of the cut or nothing."""
        upstream = self._upstreams.find(turn.policy.summary.upstream or "") or turn.upstream
        model = self._models.choose(turn, upstream.name)
        meter = (turn.owner, upstream.name, model)
        ratio = self._read_ratio(meter, situation, weights)
        limits = await self._read_limits(turn, upstream, model)
        window = (limits.context or NO_LIMIT) - cut.cap_tokens
        most = min(window, limits.input or NO_LIMIT, wish.most_tokens)
        spoken = await asyncio.to_thread(read_folded, turn, cut)
        sizes = situation.sizes.messages[cut.start : cut.covers]
        history = FoldedHistory(situation.conversation, cut, spoken, sizes)
        frame = await self._count(turn, make_parts(turn.policy, cut, (), Quoting()))
        room = most / ratio - frame
        attempts = await asyncio.to_thread(_list_attempts, history, room, wish.calls)
        for attempt in attempts:
            part = shrink_cut(weights, cut, attempt.covers)
            said = spoken[: part.covers - part.start]
            parts = make_parts(turn.policy, part, said, attempt.quoting)
            raw = await self._count(turn, parts)
            prompt = int(raw * ratio)
            if prompt <= most:
                room_tokens = window + part.cap_tokens - prompt
                assignment = _make_assignment(turn, (upstream, model), parts, part.cap_tokens, room_tokens)
                return FittedCall(assignment, part, said, weights.ratio, prompt, raw, meter)
        return None

    def learn(self, fitted: FittedCall, prompt_tokens: int | None) -> None:
        """What upstream counted of a call that was made."""
        ratio = (prompt_tokens or 0) / fitted.raw_tokens
        if is_plausible_ratio(ratio):
            self._ratios.put(fitted.meter, ratio, _RATIO_WEIGHT_BYTES)

    def learn_limits(self, fitted: FittedCall, overflow: Overflow) -> None:
        """What a refusal says of the summariser's window, and of the prompt that did not fit."""
        self.learn(fitted, overflow.prompt_tokens)
        told = Limits(context=overflow.context, input=overflow.input)
        if told.context or told.input:
            self._limits.learn(*fitted.meter, told)

    def _read_ratio(self, meter: _Meter, situation: Situation, weights: CalibratedSizes) -> float:
        """True per raw tokens of the summariser, with the margin: as it told itself, else as the
        conversation's model does.
        """
        told = self._ratios.get(meter)
        if told is not None:
            return told * _MARGIN
        margin = _MARGIN if situation.known.is_calibrated else _UNCALIBRATED_MARGIN
        return weights.ratio * margin

    async def _count(self, turn: Turn, parts: tuple[str, ...]) -> int:
        estimator = turn.policy.estimator
        return _FRAME_TOKENS + sum([await self._sizer.count(text, estimator) for text in parts])

    async def _read_limits(self, turn: Turn, upstream: UpstreamSettings, model: str) -> Limits:
        """Of the model that is to summarise. The long window is for who gets the client's headers."""
        is_own = upstream.name == turn.upstream.name
        if is_own and model == turn.model:
            return turn.limits
        is_long = is_own and has_long_window(model, turn.raw_headers)
        return await self._limits.load(turn.owner, upstream.name, model, has_long_window=is_long)


def _make_assignment(
    turn: Turn, asked: tuple[UpstreamSettings, str], parts: tuple[str, ...], cap: int, room: int
) -> Assignment:
    """`asked`: an upstream and a model of it."""
    upstream, model = asked
    form = _choose_format(turn, upstream)
    envelope = turn.received.body.envelope
    own = envelope.requested_key if form is turn.received.form else ""
    return Assignment(
        form=form,
        url=_choose_url(turn, upstream, form),
        headers=_choose_headers(turn, upstream, form),
        request=SummaryRequest(
            model=model,
            system=turn.policy.prompts.system,
            parts=parts,
            output_key=own or form.output_key,
            cap=cap,
            room=room,
            identity_blocks=envelope.identity_blocks if upstream.name == turn.upstream.name else (),
        ),
        timeout_seconds=turn.policy.summary.timeout_seconds,
    )


def make_parts(
    policy: Policy, cut: Cut, spoken: Sequence[TranscriptEntry], quoting: Quoting
) -> tuple[str, ...]:
    """The user message of a summary call: the question, the history as data, one instruction at the end."""
    prompts, summary = policy.prompts, policy.summary
    parts = [prompts.question]
    if cut.base is not None:
        parts.append(render_earlier_summary(cut.base.summary))
    tool_chars = _smaller(quoting.tool_chars, summary.message_chars)
    text_chars = _smaller(quoting.text_chars, summary.message_chars)
    parts.append(render_transcript(spoken, tool_chars, text_chars))
    parts.append("\n".join(summary.extra_context))
    instruction = prompts.instruction
    if summary.instructions:
        instruction = f"{instruction}\n\n{summary.instructions}"
    # What runs into its cap is truncated, and then it is no summary: so it is told.
    instruction += f"\n\nWrite at most {int(_WORDS_PER_TOKEN * cut.cap_tokens)} words."
    return tuple(part for part in (*parts, instruction) if part.strip())


def _smaller(ours: int | None, other: int | None) -> int | None:
    return min(ours, other) if ours is not None and other is not None else other if ours is None else ours


def _list_attempts(history: FoldedHistory, room_tokens: float, calls: int) -> list[Attempt]:
    attempts = list(find_whole(history, room_tokens))
    return [*attempts, *find_chunks(history, room_tokens, calls)] if calls else attempts


def _choose_format(turn: Turn, upstream: UpstreamSettings) -> WireFormat:
    """The conversation's own, where the upstream speaks it."""
    own = turn.received.form
    spoken = [form for form in FORMATS.values() if form.name in upstream.formats]
    return own if upstream.name == turn.upstream.name or own in spoken or not spoken else spoken[0]


def _choose_headers(turn: Turn, upstream: UpstreamSettings, form: WireFormat) -> tuple[tuple[str, str], ...]:
    """The client's own end-to-end ones where the conversation goes; elsewhere nothing of the client's, only
    what the API wants of everybody.
    """
    is_own = upstream.name == turn.upstream.name
    headers = make_upstream_headers(turn.raw_headers if is_own else (), upstream, form.path)
    for name, value in form.headers:
        headers.setdefault(name, value)
    return tuple(headers.items())


def _choose_url(turn: Turn, upstream: UpstreamSettings, form: WireFormat) -> str:
    is_own = upstream.name == turn.upstream.name
    return str(turn.url if is_own else make_url(upstream, form.path))


# JOINED: What was said in the messages that a cut folds: the originals that the client just se


def read_folded(turn: Turn, cut: Cut) -> list[TranscriptEntry]:
    """Never placeholders. Parses each of them: call it in a thread."""
    parse_entry = turn.received.form.parse_entry
    return [parse_entry(turn.received.raw(position)) for position in range(cut.start, cut.covers)]
