"""Sends a turn whose model may search originals: as many calls as it takes, and one response for the client.

A further call that fails costs the client nothing as long as it has seen nothing of the reply: then the
request is sent once more, without the tool. Afterwards the response is broken off.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace as with_fields

from msgspec.structs import replace

from gateway.compaction.compactor import Compactor
from gateway.conversations.turn import Turn
from gateway.core.compaction.clamp import choose_output
from gateway.core.compaction.plan import Plan
from gateway.core.errors import RequestRefused, UpstreamFailed
from gateway.core.history.recall import Recall
from gateway.core.history.view import FRAME_TOKENS
from gateway.core.search.cutting import estimate_tokens
from gateway.core.sizing.estimate import Estimate
from gateway.http.reply import Reply
from gateway.outgoing.call_maker import Additions, CallMaker
from gateway.pipeline.exchange import Exchange, FailedFollowUp, Forwarded, Outcome
from gateway.pipeline.recall_reply import RecallReply
from gateway.pipeline.recall_search import RecallSearch
from gateway.pipeline.relay import Relay
from gateway.planning.message_sizes import Sizer
from gateway.reporting.reporter import Reporter

_TOOL: Additions = frozenset({"tool"})
Record = Callable[[Plan, Outcome], None]


class _RecallTurn:
    """One turn under way. plan: with what was recalled, once that is kept."""

    def __init__(self, turn: Turn, plan: Plan, exchange: Exchange, client: Reply) -> None:
        self.turn = turn
        self.plan = plan
        self.exchange = exchange
        self.client = client


class RecallLoop:
    def __init__(
        self,
        relay: Relay,
        calls: CallMaker,
        search: RecallSearch,
        compactor: Compactor,
        reporter: Reporter,
        sizer: Sizer,
    ) -> None:
        self._relay = relay
        self._calls = calls
        self._search = search
        self._compactor = compactor
        self._reporter = reporter
        self._sizer = sizer

    async def run(
        self, turn: Turn, plan: Plan, exchange: Exchange, client: Reply, record: Record
    ) -> Forwarded:
        """As `Relay.forward`. exchange: of the first call, which offers the tool.

        record: called at the end, with the plan and what was recalled, and how the last response ended.
        """
        under_way = _RecallTurn(turn, plan, exchange, client)

        async def keep(reply: RecallReply) -> None:
            under_way.plan = await self._keep(turn, plan, reply)

        reply = RecallReply(turn, plan, self._search, client, keep, shows_headers=bool(exchange.headers))
        try:
            first = replace(exchange, editor=reply, on_outcome=reply.note_outcome)
            forwarded = await self._relay.forward(first, client)
            if reply.request is not None:
                under_way.exchange = replace(first, additions=exchange.additions - forwarded.refused)
                await self._go_on(under_way, reply)
            return forwarded
        finally:
            client.answered.recall_searches, client.answered.recall_usage = reply.searches, reply.extra
            if reply.outcome is not None:
                record(under_way.plan, reply.outcome)

    async def _go_on(self, under_way: _RecallTurn, reply: RecallReply) -> None:
        """Until the model has answered."""
        while reply.request is not None:
            await reply.answer()
            self._note_extra(under_way, reply)
            failed = await self._follow_up(under_way, reply)
            if failed is not None:
                reply.break_off()
                self._note_extra(under_way, reply)
                await self._fall_back(under_way, reply, failed)
                return

    async def _follow_up(self, under_way: _RecallTurn, reply: RecallReply) -> FailedFollowUp | None:
        """One more call, with what was found."""
        turn, exchange, client = under_way.turn, under_way.exchange, under_way.client
        additions = exchange.additions - _TOOL if reply.is_last else exchange.additions
        # A head that has not left can still say what was recalled.
        client.take_back()
        plan = _with_output(turn, under_way.plan, reply)
        try:
            call = await self._calls.make(turn, plan, additions, reply.answered)
        except RequestRefused as error:
            # Too much waits to be rewritten.
            return _describe_refusal(turn, error)
        follow_up = replace(
            exchange,
            call=call,
            additions=additions,
            make_with=None,
            headers={**exchange.headers, **reply.headers},
            probe="none",
            is_follow_up=True,
        )
        try:
            return (await _forward_awaited(self._relay, follow_up, reply, client)).failed
        except UpstreamFailed as error:
            return _describe_failure(turn, error)

    async def _fall_back(self, under_way: _RecallTurn, reply: RecallReply, failed: FailedFollowUp) -> None:
        turn, client = under_way.turn, under_way.client
        if reply.has_shown:
            await client.fail(failed.body, failed.status)
            return
        is_begun = client.status > 0
        reply.start_over(is_begun=is_begun)
        additions = under_way.exchange.additions - _TOOL
        try:
            again = replace(
                under_way.exchange,
                call=await self._calls.make(turn, under_way.plan, additions),
                additions=additions,
                make_with=None,
                probe="none",
                is_follow_up=is_begun,
            )
            ended = (await _forward_awaited(self._relay, again, reply, client)).failed
        except UpstreamFailed as error:
            if not is_begun:
                raise
            ended = _describe_failure(turn, error)
        except RequestRefused as error:
            if not is_begun:
                raise
            ended = _describe_refusal(turn, error)
        if ended is not None:
            await client.fail(ended.body, ended.status)

    def _note_extra(self, under_way: _RecallTurn, reply: RecallReply) -> None:
        """The last response was not the one that the client gets."""
        usage = reply.count_extra()
        if usage is not None:
            self._reporter.note_recall_call(under_way.turn, usage)
        reply.outcome = None

    async def _keep(self, turn: Turn, plan: Plan, reply: RecallReply) -> Plan:
        """The plan with what was recalled, which is durable then, as far as the store allows."""
        mark, conversation = reply.mark, turn.received.conversation
        if not mark.calls and not mark.text:
            # Nothing would tell this reply from another one.
            return plan
        tokens = 0
        for each in reply.rounds:
            text = each.call + each.results
            tokens += 2 * FRAME_TOKENS + await self._count(turn, text)
        length = len(conversation.messages)
        recall = Recall(
            owner=turn.owner,
            chain=conversation.key.hex(),
            length=length,
            position=length,
            kind="tool",
            rounds=tuple(reply.rounds),
            tokens=tokens,
            reply=mark,
            created_seconds=time.time(),
            conversation=turn.conversation_id,
        )
        kept = with_fields(plan, recalls=(*plan.recalls, recall), new_recall=recall)
        await self._compactor.secure(turn, kept)
        return kept

    async def _count(self, turn: Turn, text: str) -> int:
        """About, where too much waits to be counted: the reply is whole, and must not break off for this."""
        try:
            return await self._sizer.count(turn.owner, text, turn.policy.estimator)
        except RequestRefused:
            return estimate_tokens(text)


async def _forward_awaited(relay: Relay, exchange: Exchange, reply: RecallReply, client: Reply) -> Forwarded:
    """The client is kept alive until the upstream says something."""
    begun = asyncio.get_running_loop().create_future()
    reply.await_first(begun)
    task = asyncio.ensure_future(relay.forward(exchange, client))
    task.add_done_callback(lambda _: None if begun.done() else begun.set_result(None))
    try:
        await client.wait_for(begun, exchange.headers)
        return await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


def _with_output(turn: Turn, plan: Plan, reply: RecallReply) -> Plan:
    """What was found takes room that the reply was to have."""
    thresholds, requested = turn.thresholds, plan.output or turn.requested_tokens
    if thresholds is None or requested is None:
        return plan
    tokens = plan.sent + turn.policy.recall_tokens * reply.searches
    minimum = turn.received.body.envelope.minimum_reply_tokens
    output = choose_output(requested, thresholds.context, Estimate(tokens, 0), minimum)
    return plan if output is None else with_fields(plan, output=output)


def _describe_failure(turn: Turn, error: UpstreamFailed) -> FailedFollowUp:
    refused = RequestRefused(502, f"No response from upstream ({error}).", kind="upstream_error")
    return _describe_refusal(turn, refused)


def _describe_refusal(turn: Turn, refused: RequestRefused) -> FailedFollowUp:
    return FailedFollowUp(refused.status, turn.received.format.render_error(refused))
