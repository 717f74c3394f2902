"""Plays a scripted conversation through the real decisions under one policy, and an exact upstream.

No socket and no clock: every number can be worked out by hand. A message is its role and its tokens; a
summary takes `SUMMARY_TOKENS`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gateway.core.compaction.cut import Cut
from gateway.core.compaction.decision import CompactFirst, DigestFirst, decide, decide_after
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Batch, Pivot, find_eligible_batches, find_eligible_pivots
from gateway.core.history.view import FRAME_TOKENS, Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Calibration, Known, Sizes
from tests.decisions.builders import JSON, converse

SUMMARY_TOKENS = 1_000
# Tokens of the note about left-out messages.
DROPPED_TOKENS = 50
_CALIBRATED = Known(head=None, head_view=View(None, {}), calibration=Calibration(1.0, 3))


@dataclass(frozen=True, slots=True)
class Said:
    role: str
    tokens: int
    tool: str = "read"


Script = Sequence[Said]


def make_talk(turns: int, result: int) -> Script:
    """In each turn a question and an answer of 100 tokens, between them a call of 100 and its result."""
    turn = [Said("user", 100), Said("assistant", 100), Said("tool", result), Said("assistant", 100)]
    return [said for _ in range(turns) for said in turn] + [Said("user", 100)]


def make_prose(turns: int) -> Script:
    """No tools: an answer of 1,900 tokens and a question of 100 in each turn."""
    turn = [Said("assistant", 1_900), Said("user", 100)]
    return [Said("user", 100), *turn * turns]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compacted:
    """at: tokens that were too many, after an answer or of a request. kept: messages behind the summary."""

    at: int
    kept: int


@dataclass(kw_only=True, slots=True)
class Played:
    compacted: list[Compacted] = field(default_factory=list)
    summaries: int = 0
    most_sent: int = 0
    last: Plan | None = None
    messages: int = 0

    @property
    def placeholders(self) -> int:
        return len(self.last.view.marks) if self.last is not None else 0

    @property
    def sent(self) -> int:
        return self.last.sent if self.last is not None else 0


def play(policy: Policy, limits: Limits, script: Script, *, fails: bool = False) -> Played:
    """Each request of the script, one after the other; `fails`: no summary is ever to be had."""
    played = Played()
    pivots: list[Pivot] = []
    batches: list[Batch] = []
    sticky: Pivot | None = None
    for length in _requests(script):
        conversation = converse(_render(script[:length]))
        situation = _situate(policy, limits, script[:length], conversation)
        situation = replace(situation, pivots=find_eligible_pivots(conversation, pivots))
        situation = replace(situation, sticky=sticky, batches=find_eligible_batches(conversation, batches))
        plan = _decide(played, situation, pivots, fails=fails)
        sticky, batches = plan.pivot, list(plan.batches)
        played.last, played.messages = plan, length - plan.view.start
        played.most_sent = max(played.most_sent, plan.sent)
        total = plan.sent + (script[length].tokens if length < len(script) else 0)
        cut = decide_after(replace(situation, sticky=plan.pivot, pivots=pivots, batches=batches), total)
        if cut is not None and not fails:
            pivots.append(_fold(played, situation, cut, total))
    return played


def _requests(script: Script) -> Iterator[int]:
    """Lengths at which it is the model's turn."""
    for length in range(1, len(script) + 1):
        if script[length - 1].role != "assistant" and (
            length == len(script) or script[length].role == "assistant"
        ):
            yield length


def _decide(played: Played, situation: Situation, pivots: list[Pivot], *, fails: bool) -> Plan:
    """Compacts first if the plan demands it, as the planning step does."""
    while True:
        decision = decide(situation)
        match decision:
            case Plan():
                return decision
            case CompactFirst(cut=cut) if fails:
                situation = replace(situation, may_compact=False)
            case CompactFirst(cut=cut) | DigestFirst(cut=cut):
                pivots.append(_fold(played, situation, cut, _count(situation)))
                eligible = find_eligible_pivots(situation.conversation, pivots)
                situation = replace(situation, pivots=eligible, may_digest=False)


def _count(situation: Situation) -> int:
    """The unchanged request."""
    plain = replace(situation.policy, auto=False, prune=False)
    plan = decide(replace(situation, policy=plain, may_compact=False, may_digest=False))
    assert isinstance(plan, Plan)
    return plan.sent


def _fold(played: Played, situation: Situation, cut: Cut, at: int) -> Pivot:
    conversation = situation.conversation
    kept = len(conversation.messages) - cut.covers
    played.compacted.append(Compacted(at=at, kept=kept))
    is_asked = situation.policy.summary.method == "model" and situation.may_compact
    played.summaries += is_asked
    opening_end = conversation.opening_end if situation.policy.keep.opening else 0
    return Pivot(
        owner="t",
        key=conversation.chain[cut.covers].hex(),
        covers=cut.covers,
        opening_end=opening_end,
        summary="We did it.",
        question=None if opening_end else "?",
        resume="Go on.",
        tokens=SUMMARY_TOKENS if situation.policy.summary.method == "model" else DROPPED_TOKENS,
        opening_chars=None,
        opening_tokens=sum(size.tokens for size in situation.sizes.messages[:opening_end]),
        saved_tokens=0,
        created_seconds=0.0,
    )


def _situate(policy: Policy, limits: Limits, script: Script, conversation: Conversation) -> Situation:
    sizes = [Size(said.tokens, 4 * (said.tokens - FRAME_TOKENS)) for said in script]
    return Situation(
        owner="t",
        conversation=conversation,
        sizes=Sizes(messages=sizes, environment=0),
        policy=policy,
        limits=limits,
        requested=None,
        growth=0.0,
        known=_CALIBRATED,
        sticky=None,
        pivots=[],
        batches=[],
        may_compact=policy.auto,
        may_digest=policy.auto,
    )


def _render(script: Script) -> list[JSON]:
    """With ids that count, and texts that differ."""
    messages: list[JSON] = []
    for at, said in enumerate(script):
        message: JSON = {"role": said.role, "content": f"{said.role} {at}"}
        if said.role == "tool":
            call = {"id": f"c{at}", "function": {"name": said.tool, "arguments": "{}"}}
            before = next(m for m in reversed(messages) if m["role"] == "assistant")
            before.setdefault("tool_calls", []).append(call)
            message["tool_call_id"] = f"c{at}"
        messages.append(message)
    return messages
