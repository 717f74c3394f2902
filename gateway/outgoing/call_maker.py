"""Makes the call of a turn: the body rewritten by its plan, with what the gateway asks for beside the client.

Remembers which models refuse what is added.
"""

from collections.abc import Sequence
from typing import Final, Literal

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.plan_fingerprint import UNCHANGED, fingerprint_plan
from gateway.http.client import UpstreamCall
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.outgoing.fair_rewriter import FairRewriter
from gateway.wire.edits import Edit, make_usage_edit
from gateway.wire.recall import AnsweredRecall, Insertion

# What the gateway asks for beside what the client does, and an upstream may refuse: `include_usage`, and its
# own tool.
Addition = Literal["usage", "tool"]
Additions = frozenset[Addition]

NOTHING_ADDED: Additions = frozenset()
_REFUSERS_BYTES: Final = 1 << 18
_REFUSER_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 120


class CallMaker:
    def __init__(self, rewriter: FairRewriter) -> None:
        self._rewriter = rewriter
        # What a model at an upstream has refused.
        self._refusers: Lru[tuple[str, str, Addition], bool] = Lru(_REFUSERS_BYTES)

    def choose_additions(self, turn: Turn, plan: Plan) -> Additions:
        """Once for each plan: the client's tools are parsed."""
        wanted: list[Addition] = []
        if _wants_usage(turn):
            wanted.append("usage")
        # Most policies say no, and nothing else is looked at then.
        if turn.policy.recall == "tool" and _wants_tool(turn, plan):
            wanted.append("tool")
        return frozenset(each for each in wanted if not self._is_refused(turn, each))

    def note_refused(self, turn: Turn, refused: Additions) -> None:
        for each in refused:
            weight = _REFUSER_WEIGHT_BYTES + weigh_texts(turn.model)
            self._refusers.put((turn.upstream.name, turn.model, each), True, weight)

    def _is_refused(self, turn: Turn, addition: Addition) -> bool:
        return (turn.upstream.name, turn.model, addition) in self._refusers

    async def make(
        self, turn: Turn, plan: Plan, additions: Additions, answered: Sequence[AnsweredRecall] = ()
    ) -> UpstreamCall:
        """answered: what the model has recalled in this turn, at the end of the array."""
        if not additions and not answered:
            call = UpstreamCall(turn.upstream, turn.upstream_head, turn.raw_body)
            if _passes_as_received(turn, plan):
                return call
            return call.with_body(await self._rewriter.rewrite(turn, plan))
        # The response is edited as it comes.
        head = turn.upstream_head.without_encoding.asking_for_identity
        return UpstreamCall(turn.upstream, head, await self.make_body(turn, plan, additions, answered))

    async def make_body(
        self, turn: Turn, plan: Plan, additions: Additions, answered: Sequence[AnsweredRecall] = ()
    ) -> bytes:
        """Without a content encoding. See `make`."""
        return await self._rewriter.rewrite(turn, plan, _make_edits(turn, additions, answered))

    def count_copied_bytes(self, turn: Turn, plan: Plan, additions: Additions) -> int:
        """The memory for the bodies that are made of the received one, which is often sent as it is."""
        # One more for the call after a search.
        copies = (not _passes_as_received(turn, plan)) + bool(additions) + ("tool" in additions)
        return copies * len(turn.received.body.data)

    async def count_bytes(self, turn: Turn, plan: Plan) -> int:
        """Bytes of the body that a plan makes."""
        return len(await self._rewriter.rewrite(turn, plan))


def _wants_usage(turn: Turn) -> bool:
    """True for a stream whose client did not ask."""
    envelope = turn.received.body.envelope
    return envelope.is_streaming and not envelope.wants_usage and turn.upstream.include_usage


def _wants_tool(turn: Turn, plan: Plan) -> bool:
    """From the first compaction on, so that the list of tools changes together with the array, and not again.

    Its own searches need originals, and the client's tools for side calls are none of the model's business.
    """
    syntax = turn.received.format.recall
    if plan.pivot is None or syntax is None or turn.purpose != "main" or not turn.policy.originals.keep:
        return False
    return syntax.may_offer(turn.received.body)


def _make_edits(turn: Turn, additions: Additions, answered: Sequence[AnsweredRecall]) -> list[Edit]:
    body, syntax = turn.received.body, turn.received.format.recall
    inserted: list[Insertion] = []
    if syntax is not None and "tool" in additions:
        inserted.append(syntax.make_tool(body))
    if syntax is not None and answered:
        inserted += syntax.continue_reply(body, answered)
    edits = [Edit(each.at, each.at, each.new) for each in inserted]
    return [*edits, make_usage_edit(body)] if "usage" in additions else edits


def _passes_as_received(turn: Turn, plan: Plan) -> bool:
    """Whether the upstream holds exactly the history that would be sent: it holds what was sent before the
    response that the request names, and nothing of a request that names none.
    """
    held = turn.received.held
    if held == UNCHANGED or plan.output is not None:
        return not plan.changes_body
    return fingerprint_plan(plan) == held
