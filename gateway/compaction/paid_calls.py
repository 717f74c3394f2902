"""Makes summary calls within what the tenant may use in an hour, and counts them. Retries are calls, too."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.compaction.summary_client import CallRefused, SummaryClient, SummaryReply
from gateway.compaction.summary_prompt import FittedCall
from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.reporting.metrics import Metrics
from gateway.tenants import Tenant
from gateway.tenants.budget import SummaryBudget

if TYPE_CHECKING:
    from gateway.traces import Tracer


class PaidCalls:
    def __init__(
        self, client: SummaryClient, budget: SummaryBudget, metrics: Metrics, tracer: "Tracer | None" = None
    ) -> None:
        """tracer: None where traces are off."""
        self._client = client
        self._budget = budget
        self._metrics = metrics
        self._tracer = tracer

    def is_over_budget(self, tenant: Tenant) -> bool:
        """Whether the next call would not be made, as far as this process knows."""
        return self._budget.is_spent(tenant)

    def note_missing(self, tenant: Tenant) -> None:
        """A summary was not made because of the budget."""
        self._budget.note_missing(tenant)

    async def ask(self, tenant: Tenant, fitted: FittedCall) -> SummaryReply | None:
        """None if the budget has no room for the call. Raises what the client raises."""
        # Where there is no room for a riding call, there may be room for the quoted one that replaces it, so
        # no summary is missing yet.
        spend = self._budget.spend_if_room if fitted.is_riding else self._budget.spend
        expense = await spend(tenant, fitted.prompt_tokens)
        if expense is None:
            return None
        try:
            reply = await self._ask(fitted)
        except (CallRefused, ModelUnknown):
            # No model has read the prompt. After any other failure it may have.
            self._budget.settle(expense, 0)
            raise
        if reply.usage is not None:
            self._budget.settle(expense, reply.usage.total)
        return reply

    async def _ask(self, fitted: FittedCall) -> SummaryReply:
        begun_seconds, result, usage = time.monotonic(), "cancelled", None
        try:
            reply = await self._ask_traced(fitted)
            result, usage = "done", reply.usage
            return reply
        except (UpstreamFailed, ModelUnknown):
            result = "failed"
            raise
        finally:
            seconds = time.monotonic() - begun_seconds
            self._metrics.note_summary_call(
                result, usage, seconds, "riding" if fitted.is_riding else "quoted"
            )

    async def _ask_traced(self, fitted: FittedCall) -> SummaryReply:
        if self._tracer is None:
            return await self._client.ask(fitted.call)
        call, model = fitted.call, fitted.model
        with self._tracer.summary_call(model.model, call.url, model.upstream) as span:
            headers = self._tracer.with_carried(call.headers, span)
            reply = await self._client.ask(replace(call, headers=headers))
            usage, reason = reply.usage, reply.candidate.finish_reason
            self._tracer.describe(
                span,
                input_tokens=usage.prompt_tokens if usage is not None else None,
                output_tokens=usage.output_tokens if usage is not None else None,
                finish_reasons=(reason,) if reason is not None else None,
            )
            return reply
