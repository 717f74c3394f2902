"""A conversation that is planned turn by turn, without a gateway: how often is it compacted?

Sizes are exact. A summary is as long as it may be; one that was prepared is ready before the next request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gateway.core.compaction.cut import Cut
from gateway.core.compaction.decision import decide, decide_after
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.history.view import Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Calibration, Known, Sizes
from tests.builders.chat import JSON, converse, make_pivot

_OPENING_TOKENS = 200
# Of a turn; the rest are results.
_REPLY_SHARE = 0.4


@dataclass(frozen=True, kw_only=True)
class LongRun:
    # The first request that was sent with each pivot.
    compacted: tuple[int, ...]
    # The largest summary that was asked for, in tokens.
    caps: tuple[int, ...]
    plans: tuple[Plan, ...]

    @property
    def turns_between(self) -> float:
        """Requests for each compaction after the first one."""
        return (self.compacted[-1] - self.compacted[0]) / max(1, len(self.compacted) - 1)


def play(policy: Policy, window: int, floor: int, turns: Sequence[int]) -> LongRun:
    """floor: leading block, tools and an opening of 200 tokens. turns: the tokens that each one adds."""
    player = _Player(policy, window, floor, turns)
    for turn in range(len(turns)):
        player.play_turn(turn)
    return LongRun(compacted=tuple(player.compacted), caps=tuple(player.caps), plans=tuple(player.plans))


@lru_cache(maxsize=1_000)
def _converse(turns: int) -> Conversation:
    return converse(_write(turns))


def _write(turns: int) -> list[JSON]:
    messages: list[JSON] = [{"role": "user", "content": "Fix it."}]
    for turn in range(turns):
        call = {"id": f"c{turn}", "function": {"name": "look"}}
        messages += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": "x"},
        ]
    return messages


class _Player:
    def __init__(self, policy: Policy, window: int, floor: int, turns: Sequence[int]) -> None:
        self.policy, self.limits, self.turns = policy, Limits(context=window), turns
        self.environment = floor - _OPENING_TOKENS
        self.sizes = [_size(_OPENING_TOKENS)]
        for tokens in turns:
            reply = int(_REPLY_SHARE * tokens)
            self.sizes += [_size(reply), _size(tokens - reply)]
        self.pivots: list[Pivot] = []
        self.batches: tuple[Batch, ...] = ()
        self.sticky: Pivot | None = None
        self.growth = 0.0
        self.compacted: list[int] = []
        self.caps: list[int] = []
        self.plans: list[Plan] = []

    def play_turn(self, turn: int) -> None:
        """The request after so many turns, and what is prepared after its response."""
        plan = decide(self._situate(turn))
        if not isinstance(plan, Plan):
            self._summarize(turn, plan.cut)
            plan = decide(self._situate(turn, has_compacted=True))
        assert isinstance(plan, Plan)
        if plan.pivot is not self.sticky:
            self.compacted.append(turn)
        self.sticky, self.batches = plan.pivot, plan.batches
        self.plans.append(plan)
        if turn:
            added = self.turns[turn - 1]
            self.growth = (self.growth + added) / 2 if self.growth else float(added)
        total = plan.sent + int(_REPLY_SHARE * self.turns[turn])
        cut = decide_after(self._situate(turn), total)
        if cut is not None:
            self._summarize(turn, cut)

    def _situate(self, turn: int, *, has_compacted: bool = False) -> Situation:
        messages = 1 + 2 * turn
        return Situation(
            owner="t",
            conversation=_converse(turn),
            sizes=Sizes(messages=self.sizes[:messages], environment=self.environment),
            policy=self.policy,
            limits=self.limits,
            requested=None,
            growth=self.growth,
            known=Known(head=None, head_view=View(None, {}), calibration=Calibration(1.0, 9)),
            sticky=self.sticky,
            pivots=[pivot for pivot in self.pivots if pivot.covers <= max(0, messages - 2)],
            batches=self.batches,
            may_compact=True,
            has_compacted=has_compacted,
        )

    def _summarize(self, turn: int, cut: Cut) -> None:
        tokens = min(cut.cap_tokens, int(0.9 * cut.replaced_tokens))
        self.caps.append(cut.cap_tokens)
        pivot = make_pivot(_converse(turn), cut.covers, tokens=tokens, opening_tokens=_OPENING_TOKENS)
        self.pivots.append(pivot)


def _size(tokens: int) -> Size:
    return Size(tokens, 4 * tokens)
