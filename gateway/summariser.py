"""Makes one pivot: gives the history to a model, judges what comes back, and puts it into its place.

Goes where the conversation goes, with the client's own end-to-end headers, unless the policy names another
upstream or model. Stores nothing.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.cut import Cut
from gateway.core.errors import UpstreamFailed
from gateway.core.fold import ATTEMPTS, Attempt, shrink_cut
from gateway.core.pivot import Mark, Pivot
from gateway.core.plan import Situation
from gateway.core.policy import Policy
from gateway.core.summary import Accepted, Rejected, judge_summary, strip_thinking
from gateway.core.transcript import Spoken, render_earlier_summary, render_transcript
from gateway.core.view import shown_tokens
from gateway.core.weights import weigh
from gateway.limits import LimitsBook
from gateway.settings import Prompts, UpstreamSettings
from gateway.sizes import Sizer
from gateway.summary_call import Assignment, SummaryClient
from gateway.turn import Turn
from gateway.upstream import Upstreams, make_headers, make_url
from gateway.wire.chat_summary import output_key
from gateway.wire.chat_text import read_spoken

# One retry (DESIGN §6); where the first may not have fitted after all, with at most this share of its prompt.
_TRIES: Final = 2
_SMALLER_TRY: Final = 0.6
_MAY_NOT_FIT: Final = ("status 400", "status 413")
# System prompt and chat template around the parts, in raw tokens.
_FRAME_TOKENS: Final = 200
# The prompt is counted whole with this conversation's own ratio: what is left is how its texts differ.
_MARGIN: Final = 1.1
_UNCALIBRATED_MARGIN: Final = 1.25
_TOO_BIG: Final = "history too big for the summariser"
# What the inserted messages cost beyond their texts, in raw tokens.
_INSERTED_TOKENS: Final = 12
_PATH: Final = "/v1/chat/completions"
# Stands for a window that nobody knows.
_NO_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A call that fits. cut: what it covers. ratio: true per raw tokens. prompt_tokens: with the margin."""

    assignment: Assignment
    cut: Cut
    ratio: float
    prompt_tokens: int


class Summariser:
    def __init__(
        self, client: SummaryClient, upstreams: Upstreams, limits: LimitsBook, sizer: Sizer, prompts: Prompts
    ) -> None:
        self._client = client
        self._upstreams = upstreams
        self._limits = limits
        self._sizer = sizer
        self._prompts = prompts

    async def summarise(self, turn: Turn, cut: Cut, situation: Situation) -> Pivot | Rejected:
        """At most two calls. Never raises for what an upstream does.

        The pivot covers less than the cut where one call cannot hold all of it.
        """
        rejected, room = Rejected(_TOO_BIG, is_summarisers=False), _NO_LIMIT
        for _ in range(_TRIES):
            fitted = await self._fit(turn, cut, situation, room)
            if fitted is None:
                break
            try:
                answer = await self._client.ask(fitted.assignment)
            except UpstreamFailed as error:
                rejected = Rejected(str(error))
                if str(error) in _MAY_NOT_FIT:
                    room = int(fitted.prompt_tokens * _SMALLER_TRY)
                continue
            raw = await self._count_all(turn, (strip_thinking(answer.text),))
            tokens = int(raw * fitted.ratio)
            verdict = judge_summary(answer, tokens, fitted.cut.folded, fitted.cut.cap)
            if isinstance(verdict, Accepted):
                return await self._make_pivot(turn, fitted.cut, situation, verdict)
            rejected = verdict
        return rejected

    async def _fit(self, turn: Turn, cut: Cut, situation: Situation, most_tokens: int) -> "_Fitted | None":
        """The mildest attempt that the summariser's window holds, with a prompt of at most `most_tokens`."""
        summary, conversation = turn.policy.summary, situation.conversation
        upstream = self._upstreams.read(summary.upstream or "") or turn.upstream
        context = self._limits.read(upstream.name, summary.model or turn.model).context or _NO_LIMIT
        weights = weigh(conversation, situation.sizes, situation.known)
        margin = _MARGIN if situation.known.is_calibrated else _UNCALIBRATED_MARGIN
        spoken = await asyncio.to_thread(_read_spoken, turn, cut)
        for attempt in ATTEMPTS:
            part = shrink_cut(conversation, weights, cut, attempt.share)
            parts = self._make_parts(turn.policy, part, spoken[: part.covers - part.start], attempt)
            raw = _FRAME_TOKENS + await self._count_all(turn, parts)
            prompt = int(raw * weights.ratio * margin)
            room = context - prompt
            if room >= part.cap and prompt <= most_tokens:
                assignment = self._make_assignment(turn, upstream, parts, part.cap, room)
                return _Fitted(assignment, part, weights.ratio, prompt)
        return None

    async def _count_all(self, turn: Turn, texts: Sequence[str]) -> int:
        return sum([await self._sizer.count(text, turn.policy.estimator) for text in texts])

    def _make_assignment(
        self, turn: Turn, upstream: UpstreamSettings, parts: tuple[str, ...], cap: int, room: int
    ) -> Assignment:
        return Assignment(
            url=_choose_url(turn, upstream),
            headers=_choose_headers(turn, upstream),
            model=turn.policy.summary.model or turn.model,
            system=self._prompts.system,
            output_key=output_key(turn.received.body.envelope),
            parts=parts,
            cap=cap,
            room=room,
            timeout_seconds=turn.policy.summary.timeout_seconds,
        )

    def _make_parts(
        self, policy: Policy, cut: Cut, spoken: Sequence[Spoken], attempt: Attempt
    ) -> tuple[str, ...]:
        """The user message of a summary call: the question, the history as data, one instruction at the
        end.
        """
        parts = [self._prompts.question]
        if cut.base is not None:
            parts.append(render_earlier_summary(cut.base.summary))
        parts.append(render_transcript(spoken, attempt.tool_chars, attempt.text_chars))
        instruction = self._prompts.instruction
        if policy.summary.instructions:
            instruction = f"{instruction}\n\n{policy.summary.instructions}"
        return (*parts, instruction)

    async def _make_pivot(self, turn: Turn, cut: Cut, situation: Situation, accepted: Accepted) -> Pivot:
        conversation = situation.conversation
        opening_end = conversation.opening_end if turn.policy.keep.opening else 0
        mark = Mark(0, cut.opening_chars) if cut.opening_chars is not None else None
        question = self._prompts.question if opening_end == 0 else None
        inserted = [accepted.summary, self._prompts.resume, question or ""]
        return Pivot(
            owner=turn.owner,
            key=conversation.chain[cut.covers].hex(),
            covers=cut.covers,
            opening_end=opening_end,
            summary=accepted.summary,
            question=question,
            resume=self._prompts.resume,
            tokens=_INSERTED_TOKENS + await self._count_all(turn, inserted),
            opening_chars=cut.opening_chars,
            opening_tokens=sum(shown_tokens(size, mark) for size in situation.sizes.messages[:opening_end]),
            saved_tokens=max(0, cut.folded - accepted.tokens) + (cut.base.saved_tokens if cut.base else 0),
            created_seconds=time.time(),
        )


def _read_spoken(turn: Turn, cut: Cut) -> list[Spoken]:
    """The originals that the client just sent, never placeholders (DESIGN §6)."""
    return [read_spoken(turn.received.raw(position)) for position in range(cut.start, cut.covers)]


def _choose_headers(turn: Turn, upstream: UpstreamSettings) -> tuple[tuple[str, str], ...]:
    """The client's own end-to-end ones where the conversation goes; elsewhere nothing of the client's."""
    is_own = upstream.name == turn.upstream.name
    return tuple(make_headers(turn.raw_headers if is_own else (), upstream, _PATH).items())


def _choose_url(turn: Turn, upstream: UpstreamSettings) -> str:
    is_own = upstream.name == turn.upstream.name
    return str(turn.url if is_own else make_url(upstream, _PATH))
