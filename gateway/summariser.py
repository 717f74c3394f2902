"""Makes one pivot: gives the history to a model, judges what comes back, and puts it into its place.

Goes where the conversation goes, with the client's own end-to-end headers, unless the policy names another
upstream or model. Stores nothing.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from gateway.core.cut import Cut
from gateway.core.errors import UpstreamFailed
from gateway.core.estimate import CALIBRATED_MARGIN
from gateway.core.pivot import Mark, Pivot
from gateway.core.plan import Situation
from gateway.core.policy import Policy
from gateway.core.summary import Accepted, Rejected, judge_summary, strip_thinking
from gateway.core.transcript import TOOL_CHARS_STEPS, Spoken, render_earlier_summary, render_transcript
from gateway.core.view import shown_tokens
from gateway.core.weights import choose_ratio
from gateway.limits import LimitsBook
from gateway.settings import Prompts, UpstreamSettings
from gateway.sizes import Sizer
from gateway.summary_call import Assignment, SummaryClient
from gateway.turn import Turn
from gateway.upstream import Upstreams, make_headers, make_url
from gateway.wire.chat_summary import output_key
from gateway.wire.chat_text import read_spoken

# One retry (DESIGN §6).
_ATTEMPTS: Final = 2
# Fences, labels and chat template around the history, in true tokens.
_FRAME_TOKENS: Final = 600
# What the inserted messages cost beyond their texts, in raw tokens.
_INSERTED_TOKENS: Final = 12
_PATH: Final = "/v1/chat/completions"
# Stands for a window that nobody knows.
_NO_LIMIT: Final = 1 << 30


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
        """At most two calls. Never raises for what an upstream does."""
        ratio = choose_ratio(situation.conversation, situation.sizes, situation.known)
        assignment = await self._assign(turn, cut, ratio)
        if assignment is None:
            return Rejected("history too big for the summariser")
        rejected = Rejected("not asked")
        for _ in range(_ATTEMPTS):
            try:
                answer = await self._client.ask(assignment)
            except UpstreamFailed as error:
                rejected = Rejected(str(error))
                continue
            tokens = int(await self._sizer.count(strip_thinking(answer.text)) * ratio)
            verdict = judge_summary(answer, tokens, cut.folded, cut.cap)
            if isinstance(verdict, Accepted):
                return await self._make_pivot(turn, cut, situation, verdict)
            rejected = verdict
        return rejected

    async def _assign(self, turn: Turn, cut: Cut, ratio: float) -> Assignment | None:
        """The call that the summariser's window can hold: tool results are cut ever shorter until it does."""
        policy = turn.policy
        upstream = self._upstreams.read(policy.summary.upstream or "") or turn.upstream
        model = policy.summary.model or turn.model
        context = self._limits.read(upstream.name, model).context
        spoken = await asyncio.to_thread(_read_spoken, turn, cut)
        earlier = cut.base.summary if cut.base else None
        for tool_chars in TOOL_CHARS_STEPS:
            parts = _make_parts(spoken, earlier, policy, self._prompts, tool_chars)
            prompt = int(sum([await self._sizer.count(part) for part in parts]) * ratio) + _FRAME_TOKENS
            room = (context or _NO_LIMIT) - int(prompt * (1 + CALIBRATED_MARGIN))
            if room >= cut.cap:
                break
        else:
            return None
        return Assignment(
            url=_choose_url(turn, upstream),
            headers=tuple(make_headers(turn.raw_headers, upstream, _PATH).items()),
            model=model,
            system=self._prompts.system,
            output_key=output_key(turn.received.body.envelope),
            parts=parts,
            cap=cut.cap,
            room=room,
            timeout_seconds=policy.summary.timeout_seconds,
        )

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
            tokens=_INSERTED_TOKENS + sum([await self._sizer.count(text) for text in inserted]),
            opening_chars=cut.opening_chars,
            opening_tokens=sum(shown_tokens(size, mark) for size in situation.sizes.messages[:opening_end]),
            saved_tokens=max(0, cut.folded - accepted.tokens) + (cut.base.saved_tokens if cut.base else 0),
            created_seconds=time.time(),
        )


def _make_parts(
    spoken: Sequence[Spoken], earlier: str | None, policy: Policy, prompts: Prompts, tool_chars: int | None
) -> tuple[str, ...]:
    """The user message of a summary call: the question, the history as data, one instruction at the end."""
    parts = [prompts.question]
    if earlier:
        parts.append(render_earlier_summary(earlier))
    parts.append(render_transcript(spoken, tool_chars))
    instruction = prompts.instruction
    if policy.summary.instructions:
        instruction = f"{instruction}\n\n{policy.summary.instructions}"
    return (*parts, instruction)


def _read_spoken(turn: Turn, cut: Cut) -> list[Spoken]:
    """The originals that the client just sent, never placeholders (DESIGN §6)."""
    return [read_spoken(turn.received.raw(position)) for position in range(cut.start, cut.covers)]


def _choose_url(turn: Turn, upstream: UpstreamSettings) -> str:
    is_own = upstream.name == turn.upstream.name
    return str(turn.url if is_own else make_url(upstream, _PATH))
