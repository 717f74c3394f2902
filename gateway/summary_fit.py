"""Which call for a summary fits the summariser's window, and what it says.

Goes where the conversation goes, with the client's own end-to-end headers, unless the policy names another
upstream or model.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.beta import has_long_window
from gateway.core.cut import Cut
from gateway.core.fold import ATTEMPTS, Attempt, from_originals, shrink_cut
from gateway.core.plan import Situation
from gateway.core.policy import Policy
from gateway.core.transcript import Spoken, render_earlier_summary, render_transcript
from gateway.core.weights import Weights, weigh
from gateway.limits import LimitsBook
from gateway.settings import UpstreamSettings
from gateway.sizes import Sizer
from gateway.spoken import read_folded
from gateway.summary_call import Assignment
from gateway.summary_models import SummaryModels
from gateway.turn import Turn
from gateway.upstream import Upstreams, make_headers, make_url
from gateway.wire.chat_summary import output_key

# System prompt and chat template around the parts, in raw tokens.
_FRAME_TOKENS: Final = 200
# The prompt is counted whole with this conversation's own ratio: what is left is how its texts differ.
_MARGIN: Final = 1.1
_UNCALIBRATED_MARGIN: Final = 1.25
_PATH: Final = "/v1/chat/completions"
# Stands for a window that nobody knows.
NO_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Fitted:
    """A call that fits. upstream: where it goes. cut: what it covers. spoken: what that says.

    ratio: true per raw tokens. prompt_tokens: with the margin.
    """

    assignment: Assignment
    upstream: str
    cut: Cut
    spoken: Sequence[Spoken]
    ratio: float
    prompt_tokens: int


class SummaryFitter:
    def __init__(self, upstreams: Upstreams, limits: LimitsBook, sizer: Sizer, models: SummaryModels) -> None:
        self._upstreams = upstreams
        self._limits = limits
        self._sizer = sizer
        self._models = models

    async def fit(self, turn: Turn, cut: Cut, situation: Situation, most_tokens: int) -> Fitted | None:
        """The mildest attempt that the summariser's window holds, with a prompt of at most `most_tokens`.

        What a digest covers is summarised from the originals, if one call holds them.
        """
        weights = weigh(situation.conversation, situation.sizes, situation.known)
        originals = from_originals(cut, situation.pivots, weights)
        for wanted in (originals, cut) if originals is not None else (cut,):
            spoken = await asyncio.to_thread(read_folded, turn, wanted)
            found = await self._fit(turn, wanted, (situation, weights, spoken), most_tokens)
            if wanted is cut or (found is not None and found.cut.covers == cut.covers):
                return found
        return None

    async def _fit(
        self, turn: Turn, cut: Cut, known: tuple[Situation, Weights, list[Spoken]], most_tokens: int
    ) -> Fitted | None:
        situation, weights, spoken = known
        summary, conversation = turn.policy.summary, situation.conversation
        upstream = self._upstreams.read(summary.upstream or "") or turn.upstream
        model = self._models.choose(turn, upstream.name)
        context = await self._read_window(turn, upstream, model)
        margin = _MARGIN if situation.known.is_calibrated else _UNCALIBRATED_MARGIN
        for attempt in ATTEMPTS:
            part = shrink_cut(conversation, weights, cut, attempt.share)
            said = spoken[: part.covers - part.start]
            parts = make_parts(turn.policy, part, said, attempt)
            raw = _FRAME_TOKENS + sum(
                [await self._sizer.count(text, turn.policy.estimator) for text in parts]
            )
            prompt = int(raw * weights.ratio * margin)
            room = context - prompt
            if room >= part.cap and prompt <= most_tokens:
                assignment = _make_assignment(turn, (upstream, model), parts, part.cap, room)
                return Fitted(assignment, upstream.name, part, said, weights.ratio, prompt)
        return None

    async def _read_window(self, turn: Turn, upstream: UpstreamSettings, model: str) -> int:
        """Of the model that is to summarise. The long window is for who gets the client's headers."""
        is_own = upstream.name == turn.upstream.name
        if is_own and model == turn.model:
            return turn.limits.context or NO_LIMIT
        is_long = is_own and has_long_window(model, turn.raw_headers)
        limits = await self._limits.load(turn.owner, upstream.name, model, has_long_window=is_long)
        return limits.context or NO_LIMIT


def _make_assignment(
    turn: Turn, asked: tuple[UpstreamSettings, str], parts: tuple[str, ...], cap: int, room: int
) -> Assignment:
    """`asked`: an upstream and a model of it."""
    upstream, model = asked
    return Assignment(
        url=_choose_url(turn, upstream),
        headers=_choose_headers(turn, upstream),
        model=model,
        system=turn.policy.prompts.system,
        output_key=output_key(turn.received.body.envelope),
        parts=parts,
        cap=cap,
        room=room,
        timeout_seconds=turn.policy.summary.timeout_seconds,
    )


def make_parts(policy: Policy, cut: Cut, spoken: Sequence[Spoken], attempt: Attempt) -> tuple[str, ...]:
    """The user message of a summary call: the question, the history as data, one instruction at the end."""
    prompts, summary = policy.prompts, policy.summary
    parts = [prompts.question]
    if cut.base is not None:
        parts.append(render_earlier_summary(cut.base.summary))
    tool_chars = _smaller(attempt.tool_chars, summary.message_chars)
    text_chars = _smaller(attempt.text_chars, summary.message_chars)
    parts.append(render_transcript(spoken, tool_chars, text_chars))
    parts.append("\n".join(summary.extra_context))
    instruction = prompts.instruction
    if summary.instructions:
        instruction = f"{instruction}\n\n{summary.instructions}"
    return tuple(part for part in (*parts, instruction) if part.strip())


def _smaller(ours: int | None, other: int | None) -> int | None:
    return min(ours, other) if ours is not None and other is not None else ours or other


def _choose_headers(turn: Turn, upstream: UpstreamSettings) -> tuple[tuple[str, str], ...]:
    """The client's own end-to-end ones where the conversation goes; elsewhere nothing of the client's."""
    is_own = upstream.name == turn.upstream.name
    return tuple(make_headers(turn.raw_headers if is_own else (), upstream, _PATH).items())


def _choose_url(turn: Turn, upstream: UpstreamSettings) -> str:
    is_own = upstream.name == turn.upstream.name
    return str(turn.url if is_own else make_url(upstream, _PATH))
