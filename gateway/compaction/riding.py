"""Summary calls that ride: the conversation's own request once more, asking for a summary at its end.

Its provider has just read that prompt and still has it in its cache, so a call that repeats it byte for byte
costs less than one that quotes the history. Says when that holds, and builds the call.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Final, NamedTuple

from gateway.bounds.lanes import Lanes
from gateway.compaction.summary_client import CallTimedOut, PromptRefused
from gateway.compaction.summary_prompt import NO_LIMIT, FittedCall, make_call, make_instruction, read_entries
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.plan import make_active_plan
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary_model import wants_riding
from gateway.core.history.head import Head
from gateway.core.policy import Policy
from gateway.core.sizing.usage import Usage
from gateway.limits.book import ServedModel
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.planning.message_sizes import Sizer
from gateway.planning.rewrite import CallMaker
from gateway.state import State
from gateway.wire.format import RidingRequest

log = logging.getLogger("gateway.riding")

# Providers keep a prompt for at least this long after it was last read (docs/economics.md).
_WARM_SECONDS: Final = 300.0
# A model that has answered something else than a summary does so again, but models change.
_AVOID_SECONDS: Final = 3_600.0
# A server that failed may fail at every such request, or at this one only.
_AVOID_BRIEFLY_SECONDS: Final = 300.0
# These say nothing about the model.
_BROKEN_REPLIES: Final = ("error", "unfinished")
_AVOIDED_BYTES: Final = 1 << 18
_AVOIDED_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 250
# The message is counted by our own tokenizer, and its texts differ from those that it was calibrated with.
_MARGIN: Final = 1.1
_MESSAGE_FRAME_TOKENS: Final = 16
_KEPT: Final = "{kept}"


class _Room(NamedTuple):
    """Tokens of the request and of the prompt that is made of it, at most, and what the window and the model
    allow for the reply.
    """

    sent: int
    prompt: int
    reply: int


class RideBuilder:
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
        self._avoided: Lru[ServedModel, float] = Lru(_AVOIDED_BYTES)

    async def fit(self, turn: Turn, situation: Situation, cut: Cut) -> FittedCall | None:
        """The call for all of a cut. None if the history has to be quoted."""
        answered = self._find_answered(turn)
        if answered is None or not self._may_ride(turn, situation, cut):
            return None
        message = make_riding_message(turn.policy, cut, count_kept(situation, cut))
        raw_tokens = await self._sizer.count(turn.owner, message, turn.policy.estimator)
        room = _find_room(turn, situation, answered, raw_tokens)
        if room is None or room.reply < cut.longest_tokens or not _is_cheaper(turn, answered, room, cut):
            return None
        plan = replace(make_active_plan(situation), output=None)
        sent = await self._calls.make_body(turn, plan, adds_usage=self._calls.adds_usage(turn))
        asked = RidingRequest(message=message, cap_tokens=cut.longest_tokens, room_tokens=room.reply)
        body = await self._lanes.run(turn.owner, len(sent), turn.received.format.ride, sent, asked)
        if body is None:
            return None
        entries = await self._lanes.run_steps(turn.owner, len(sent), read_entries(turn, cut))
        call = make_call(turn, turn.upstream, turn.model, (message,), cap=cut.longest_tokens, room=room.reply)
        model = _name_model(turn)
        return FittedCall(replace(call, riding=body), cut, entries, room.prompt, raw_tokens, model)

    def _may_ride(self, turn: Turn, situation: Situation, cut: Cut) -> bool:
        return (
            wants_riding(turn.policy, turn.model, turn.upstream.name)
            and turn.rates.caches
            and turn.purpose in ("main", "agent")
            # A command is not for the model, and what is sent would end with it.
            and turn.command is None
            and _is_sent_whole(turn)
            and _builds_on_what_is_sent(situation, cut)
            and not self._is_avoided(turn)
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

    def _is_avoided(self, turn: Turn) -> bool:
        return self._clock() < (self._avoided.get(_name_model(turn)) or 0.0)

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
        weight = _AVOIDED_WEIGHT_BYTES + weigh_texts(turn.model)
        self._avoided.put(_name_model(turn), self._clock() + seconds, weight)


def make_riding_message(policy: Policy, cut: Cut, kept: int) -> str:
    """The last message of a riding call. kept: how many messages before it stay."""
    ride, summary = policy.prompts.ride.replace(_KEPT, str(kept)), policy.summary
    parts = (ride, "\n".join(summary.extra_context), make_instruction(policy, cut))
    return "\n\n".join(part for part in parts if part.strip())


def count_kept(situation: Situation, cut: Cut) -> int:
    """Messages behind the cut. What the model has recalled among them is not counted."""
    conversation = situation.conversation
    return conversation.index(len(conversation.messages)) - conversation.index(cut.covers)


def _is_sent_whole(turn: Turn) -> bool:
    """Whether the request brings the history that it continues, so that what is sent is made of it."""
    is_plain = turn.raw_body is turn.received.body.data
    return is_plain or "Content-Encoding" in turn.upstream_head.headers


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


def _is_cheaper(turn: Turn, answered: Head, room: _Room, cut: Cut) -> bool:
    """Whether the request costs less than what the cut replaces, which is quoted otherwise. The message comes
    to both. What is new in the request is not in the cache.
    """
    cached = min(answered.prompt_tokens or room.sent, room.sent)
    return turn.rates.read * cached + room.sent - cached <= cut.replaced_tokens


def _name_model(turn: Turn) -> ServedModel:
    return ServedModel(turn.owner, turn.upstream.name, turn.model, turn.has_long_window)
