"""What the summaries of a tenant may use in an hour."""

import logging

import pytest

from gateway.quotas.ledger import Ledger
from gateway.quotas.summary_budget import SummaryBudget
from gateway.reporting.metrics import Metrics
from gateway.tenants import Tenant
from tests.builders.quotas import ToySupervisor, make_limited_tenant
from tests.store.clock import Clock

_USED_UP = "the summary budget of tenant a is used up: old turns become digests where they must"
_HAS_ROOM = "the summary budget of tenant a has room again"


def make_budget(clock: Clock | None = None, ledger: Ledger | None = None) -> SummaryBudget:
    return SummaryBudget(ledger or Ledger(), Metrics(), clock or Clock())


async def spend(budget: SummaryBudget, tenant: Tenant, *tokens: int) -> list[bool]:
    return [await budget.spend(tenant, each) is not None for each in tokens]


async def test_a_tenant_without_a_budget_spends_as_it_likes() -> None:
    free = Tenant("tenant:free", None, "default")
    for tenant in (free, make_limited_tenant(requests_per_minute=1)):
        budget = make_budget()
        assert await spend(budget, tenant, *[10**9] * 20) == [True] * 20
        assert not budget.is_spent(tenant)


async def test_calls_are_limited() -> None:
    budget, tenant = make_budget(), make_limited_tenant(summary_calls_per_hour=2)
    assert await spend(budget, tenant, 10**9, 10**9, 1) == [True, True, False]
    assert budget.is_spent(tenant)


async def test_tokens_are_limited_before_they_are_used() -> None:
    budget, tenant = make_budget(), make_limited_tenant(summary_tokens_per_hour=1_000)
    assert await spend(budget, tenant, 600, 600, 400) == [True, False, True]


async def test_a_call_without_room_for_its_tokens_is_not_counted() -> None:
    tenant = make_limited_tenant(summary_calls_per_hour=2, summary_tokens_per_hour=1_000)
    assert await spend(make_budget(), tenant, 900, 900, 900, 100, 1) == [True, False, False, True, False]


async def test_nothing_at_all_can_be_allowed() -> None:
    for tenant in (
        make_limited_tenant(summary_calls_per_hour=0),
        make_limited_tenant(summary_tokens_per_hour=0),
    ):
        budget = make_budget()
        assert await spend(budget, tenant, 1) == [False]
        assert budget.is_spent(tenant)


@pytest.mark.parametrize(("used", "left"), [(0, 1_000), (100, 900), (999, 1)])
async def test_the_usage_of_a_call_takes_the_place_of_its_estimate(used: int, left: int) -> None:
    ledger = Ledger()
    budget, tenant = make_budget(ledger=ledger), make_limited_tenant(summary_tokens_per_hour=1_000)
    expense = await budget.spend(tenant, 800)
    assert expense is not None
    budget.settle(expense, used)
    await ledger.finish()
    assert await spend(budget, tenant, left + 1, left) == [False, True]


async def test_a_call_that_used_more_than_the_budget_leaves_no_room() -> None:
    ledger = Ledger()
    budget, tenant = make_budget(ledger=ledger), make_limited_tenant(summary_tokens_per_hour=1_000)
    expense = await budget.spend(tenant, 800)
    assert expense is not None
    budget.settle(expense, 5_000)
    await ledger.finish()
    assert await spend(budget, tenant, 1) == [False]


async def test_budgets_hold_over_all_processes() -> None:
    supervisor = ToySupervisor()
    budgets = [make_budget(ledger=Ledger(supervisor.connect())) for _ in range(3)]
    tenant = make_limited_tenant(summary_calls_per_hour=2)
    assert [(await spend(budget, tenant, 1))[0] for budget in budgets] == [True, True, False]


async def test_a_spent_budget_is_asked_again_when_there_may_be_room() -> None:
    clock = Clock()
    budget, tenant = make_budget(clock), make_limited_tenant(summary_calls_per_hour=1)
    await spend(budget, tenant, 1, 1)
    assert budget.is_spent(tenant)
    clock.now += 2 * 3_600
    assert not budget.is_spent(tenant)
    assert not budget.is_spent(make_limited_tenant("b", summary_calls_per_hour=1))


async def test_a_larger_budget_counts_at_once_after_a_reload() -> None:
    budget = make_budget()
    await spend(budget, make_limited_tenant(summary_calls_per_hour=1), 1, 1)
    larger = make_limited_tenant(summary_calls_per_hour=2)
    assert not budget.is_spent(larger)
    assert await spend(budget, larger, 1, 1) == [True, False]


async def test_the_log_says_once_that_a_budget_is_used_up_and_once_that_it_has_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway.quotas")
    clock = Clock()
    budget, spent = make_budget(clock), make_limited_tenant(summary_calls_per_hour=0)
    for _ in range(10):
        await spend(budget, spent, 1)
        clock.now += 3_000
    assert [record.getMessage() for record in caplog.records] == [_USED_UP]
    clock.now += 3_600
    await spend(budget, make_limited_tenant(summary_calls_per_hour=9), 1, 1)
    await spend(budget, spent, 1)
    assert [record.getMessage() for record in caplog.records] == [_USED_UP, _HAS_ROOM, _USED_UP]


async def test_summaries_that_were_not_made_are_counted_by_tenant() -> None:
    metrics = Metrics()
    SummaryBudget(Ledger(), metrics).note_missing(make_limited_tenant("team-a", summary_calls_per_hour=0))
    assert 'gateway_summaries_over_budget_total{tenant="team-a"} 1.0' in metrics.render().decode()
