"""Summary calls within a tenant's budget, and what each of them counts for."""

import httpx2 as httpx
import pytest

from gateway.compaction.paid_calls import PaidCalls
from gateway.compaction.summary_prompt import CallBudget, FittedCall
from gateway.core.errors import UpstreamFailed
from tests.builders.compaction import (
    CompactionParts,
    ModelReply,
    compaction_parts,
    make_cut,
    make_situation,
    receive,
    refuse,
    say,
    turn_of,
)
from tests.builders.quotas import make_limited_tenant

_RECEIVED = receive(4)
_BUDGET_TOKENS = 10_000
_TENANT = make_limited_tenant("t", summary_tokens_per_hour=_BUDGET_TOKENS)


async def fit(parts: CompactionParts) -> FittedCall:
    turn, situation = turn_of(_RECEIVED), make_situation(_RECEIVED)
    fitted = await parts.builder.fit(turn, situation, make_cut(5), CallBudget(calls=8))
    assert fitted is not None
    return fitted


async def has_used(parts: CompactionParts, tokens: int) -> bool:
    """Whether exactly so many tokens of the budget are used."""
    await parts.ledger.finish()
    left = _BUDGET_TOKENS - tokens
    one_too_many = await parts.budget.spend(_TENANT, left + 1)
    return one_too_many is None and await parts.budget.spend(_TENANT, left) is not None


async def test_a_call_counts_by_its_own_usage() -> None:
    async with compaction_parts(say("It works.", prompt_tokens=700, completion_tokens=300)) as parts:
        reply = await PaidCalls(parts.client, parts.budget, parts.metrics).ask(_TENANT, await fit(parts))
        assert reply is not None and reply.candidate.text == "It works."
        assert await has_used(parts, 1_000)
        lines = parts.metrics.render().decode().splitlines()
    assert 'gateway_summary_tokens_total{kind="prompt",way="quoted"} 700.0' in lines
    assert 'gateway_summary_tokens_total{kind="output",way="quoted"} 300.0' in lines


@pytest.mark.parametrize("reply", [say("It works."), httpx.ReadTimeout("late")], ids=["no usage", "no reply"])
async def test_a_call_whose_usage_is_unknown_counts_as_estimated(reply: ModelReply | Exception) -> None:
    async with compaction_parts(reply) as parts:
        fitted = await fit(parts)
        try:
            await PaidCalls(parts.client, parts.budget, parts.metrics).ask(_TENANT, fitted)
        except UpstreamFailed:
            assert isinstance(reply, Exception)
        assert await has_used(parts, fitted.prompt_tokens)


@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_a_call_that_the_upstream_refuses_uses_no_tokens(status: int) -> None:
    async with compaction_parts(refuse(status, "The model `toy` does not exist")) as parts:
        with pytest.raises(UpstreamFailed):
            await PaidCalls(parts.client, parts.budget, parts.metrics).ask(_TENANT, await fit(parts))
        assert await has_used(parts, 0)


async def test_without_room_in_the_budget_no_call_is_made() -> None:
    tenant = make_limited_tenant("t", summary_calls_per_hour=1)
    async with compaction_parts() as parts:
        calls, fitted = PaidCalls(parts.client, parts.budget, parts.metrics), await fit(parts)
        assert await calls.ask(tenant, fitted) is not None
        assert not calls.is_over_budget(tenant)
        assert await calls.ask(tenant, fitted) is None
        assert calls.is_over_budget(tenant)
        assert len(parts.model.requests) == 1


async def test_a_call_that_fails_counts_as_a_call() -> None:
    tenant = make_limited_tenant("t", summary_calls_per_hour=1)
    async with compaction_parts(refuse(500, "no")) as parts:
        calls, fitted = PaidCalls(parts.client, parts.budget, parts.metrics), await fit(parts)
        with pytest.raises(UpstreamFailed):
            await calls.ask(tenant, fitted)
        assert await calls.ask(tenant, fitted) is None
