"""Makes the call of a turn: the body rewritten by its plan, with `include_usage` where the gateway needs it
and the client did not ask.

Remembers which models refuse that.
"""

from typing import Final

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.plan_fingerprint import UNCHANGED, fingerprint_plan
from gateway.http.client import UpstreamCall
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.outgoing.fair_rewriter import FairRewriter
from gateway.wire.edits import make_usage_edit

_REFUSERS_BYTES: Final = 1 << 18
_REFUSER_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 120


class CallMaker:
    def __init__(self, rewriter: FairRewriter) -> None:
        self._rewriter = rewriter
        # Models at an upstream that have refused to be asked for usage.
        self._refusers: Lru[tuple[str, str], bool] = Lru(_REFUSERS_BYTES)

    def adds_usage(self, turn: Turn) -> bool:
        """Whether the call asks for usage beside what the client asks for."""
        return _wants_usage(turn) and (turn.upstream.name, turn.model) not in self._refusers

    def note_refused_usage(self, turn: Turn) -> None:
        weight = _REFUSER_WEIGHT_BYTES + weigh_texts(turn.model)
        self._refusers.put((turn.upstream.name, turn.model), True, weight)

    async def make(self, turn: Turn, plan: Plan, *, adds_usage: bool) -> UpstreamCall:
        if not adds_usage:
            call = UpstreamCall(turn.upstream, turn.upstream_head, turn.raw_body)
            if _passes_as_received(turn, plan):
                return call
            return call.with_body(await self._rewriter.rewrite(turn, plan))
        # The response is edited as it comes.
        head = turn.upstream_head.without_encoding.asking_for_identity
        return UpstreamCall(turn.upstream, head, await self.make_body(turn, plan, adds_usage=adds_usage))

    async def make_body(self, turn: Turn, plan: Plan, *, adds_usage: bool) -> bytes:
        """Without a content encoding."""
        more = (make_usage_edit(turn.received.body),) if adds_usage else ()
        return await self._rewriter.rewrite(turn, plan, more)

    def count_copied_bytes(self, turn: Turn, plan: Plan) -> int:
        """The memory for the bodies that are made of the received one, which is often sent as it is."""
        copies = (not _passes_as_received(turn, plan)) + self.adds_usage(turn)
        return copies * len(turn.received.body.data)

    async def count_bytes(self, turn: Turn, plan: Plan) -> int:
        """Bytes of the body that a plan makes."""
        return len(await self._rewriter.rewrite(turn, plan))


def _wants_usage(turn: Turn) -> bool:
    """True for a stream whose client did not ask."""
    envelope = turn.received.body.envelope
    return envelope.is_streaming and not envelope.wants_usage and turn.upstream.include_usage


def _passes_as_received(turn: Turn, plan: Plan) -> bool:
    """Whether the upstream holds exactly the history that would be sent: it holds what was sent before the
    response that the request names, and nothing of a request that names none.
    """
    held = turn.received.held
    if held == UNCHANGED or plan.output is not None:
        return not plan.changes_body
    return fingerprint_plan(plan) == held
