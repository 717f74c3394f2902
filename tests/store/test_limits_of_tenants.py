"""Requests a minute, requests at once, and what summaries may use in an hour."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from gateway.compaction.client import FittedCall
from gateway.core.errors import RequestRefused, UpstreamFailed
from gateway.reporting.metrics import Metrics
from gateway.store.interface import Store, Unknown
from gateway.store.sqlite import SqliteStore
from gateway.tenants import Tenant
from gateway.tenants.budget import SummaryBudget
from gateway.tenants.ledger import Ledger
from gateway.tenants.quota import QuotaGate
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
from tests.store.clock import Clock
from tests.toy.running import wait_until


class Away:
    """A store that nobody reaches. given_back: what is to be freed once it is there again."""

    def __init__(self) -> None:
        self.given_back: list[str] = []

    async def count(self, tag: str, name: str, cost: float, most: float, window: float) -> float:
        raise Unknown("away")

    async def hold(self, tag: str, name: str, member: str, most: int, ttl: float) -> bool:
        raise Unknown("away")

    def let_go(self, tag: str, name: str, member: str) -> None:
        self.given_back.append(member)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = SqliteStore(None)
    await made.open()
    yield made
    await made.close()


@pytest.fixture(params=["together", "alone"])
def ledger(request: pytest.FixtureRequest, store: Store) -> Ledger:
    """With the store, and while it is away."""
    return Ledger(store if request.param == "together" else Away(), Clock())


@pytest.fixture
def gate(ledger: Ledger) -> QuotaGate:
    return QuotaGate(ledger, Metrics().count_limited_request, Clock())


async def enter(gate: QuotaGate, tenant: Tenant, requests: AsyncExitStack) -> RequestRefused | None:
    """A request that runs until `requests` end, or why it was refused."""
    try:
        await requests.enter_async_context(gate.admit(tenant))
    except RequestRefused as error:
        return error
    return None


async def test_a_request_that_is_refused_for_its_place_does_not_count_in_the_minute(gate: QuotaGate) -> None:
    tenant = make_limited_tenant(requests_per_minute=2, concurrent_requests=1)
    async with AsyncExitStack() as first:
        assert await enter(gate, tenant, first) is None
        for _ in range(5):
            async with AsyncExitStack() as refused:
                assert await enter(gate, tenant, refused) is not None
            await asyncio.sleep(0.05)
    async with AsyncExitStack() as second:
        assert await enter(gate, tenant, second) is None


async def test_a_request_that_is_refused_for_its_minute_holds_no_place(gate: QuotaGate) -> None:
    tenant = make_limited_tenant(requests_per_minute=1, concurrent_requests=1)
    async with AsyncExitStack() as requests:
        assert await enter(gate, tenant, requests) is None
    async with AsyncExitStack() as requests:
        refused = await enter(gate, tenant, requests)
        assert refused is not None and "a minute" in str(refused)
        wider = make_limited_tenant(requests_per_minute=9, concurrent_requests=1)
        assert await enter(gate, wider, requests) is None


async def test_a_request_that_fails_or_is_cancelled_gives_its_place_back(gate: QuotaGate) -> None:
    tenant = make_limited_tenant(concurrent_requests=1)
    for error in (ConnectionError("gone"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with gate.admit(tenant):
                raise error
    async with AsyncExitStack() as requests:
        assert await enter(gate, tenant, requests) is None


class Silent(Away):
    """It says nothing of places. asked: how often it was asked for one."""

    asked = 0

    async def hold(self, tag: str, name: str, member: str, most: int, ttl: float) -> bool:
        self.asked += 1
        return await asyncio.Event().wait()


async def test_a_request_that_is_cancelled_before_it_has_a_place_does_not_count() -> None:
    store = Silent()
    ledger = Ledger(store, Clock())
    gate = QuotaGate(ledger, Metrics().count_limited_request, Clock())
    tenant = make_limited_tenant(requests_per_minute=1, concurrent_requests=1)
    for number in (1, 2):
        waiting = asyncio.create_task(enter(gate, tenant, AsyncExitStack()))
        await wait_until(lambda: store.asked == number or waiting.done())  # noqa: B023 - waited for here
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        await ledger.finish()
    assert len(store.given_back) == 2


# Summaries


def make_budget(ledger: Ledger) -> SummaryBudget:
    return SummaryBudget(ledger, Clock())


async def spend(budget: SummaryBudget, tenant: Tenant, *tokens: int) -> list[bool]:
    return [await budget.spend(tenant, each) is not None for each in tokens]


async def test_tokens_are_limited_before_they_are_used(ledger: Ledger) -> None:
    budget, tenant = make_budget(ledger), make_limited_tenant(summary_tokens_per_hour=1_000)
    assert await spend(budget, tenant, 600, 600, 400) == [True, False, True]


async def test_a_call_without_room_for_its_tokens_is_not_counted(ledger: Ledger) -> None:
    tenant = make_limited_tenant(summary_calls_per_hour=2, summary_tokens_per_hour=1_000)
    assert await spend(make_budget(ledger), tenant, 900, 900, 900, 100, 1) == [
        True,
        False,
        False,
        True,
        False,
    ]


async def test_budgets_hold_over_all_processes(store: Store) -> None:
    budgets = [make_budget(Ledger(store)) for _ in range(3)]
    tenant = make_limited_tenant(summary_calls_per_hour=2)
    assert [(await spend(budget, tenant, 1))[0] for budget in budgets] == [True, True, False]


async def test_a_process_that_ends_gives_back_what_it_holds(store: Store) -> None:
    one, other = Ledger(store), Ledger(store)
    await one.open()
    place = one.make_place("t", "places")
    assert await one.take(place, 1) and not await other.take(other.make_place("t", "places"), 1)
    await one.close()
    assert await other.take(other.make_place("t", "places"), 1)


async def test_a_place_that_is_given_back_while_the_store_is_away_is_not_lost() -> None:
    away = Away()
    ledger = Ledger(away)
    first, second = ledger.make_place("t", "places"), ledger.make_place("t", "places")
    assert await ledger.take(first, 1) and not await ledger.take(second, 1)
    ledger.let_go(first)
    assert await ledger.take(second, 1) and away.given_back == [first.member]


class Noting(Away):
    """Holds whatever it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []

    async def hold(self, tag: str, name: str, member: str, most: int, ttl: float) -> bool:
        self.held.append(member)
        return True


async def test_a_request_that_runs_for_long_keeps_its_place() -> None:
    noting = Noting()
    ledger = Ledger(noting, renew_seconds=0.001)
    await ledger.open()
    place = ledger.make_place("t", "places")
    assert await ledger.take(place, 1)
    await wait_until(lambda: len(noting.held) > 3)
    assert set(noting.held) == {place.member}
    await ledger.close()


# Calls


_RECEIVED = receive(4)
_BUDGET_TOKENS = 10_000
_TENANT = make_limited_tenant("t", summary_tokens_per_hour=_BUDGET_TOKENS)


async def fit(parts: CompactionParts) -> FittedCall:
    turn, situation = turn_of(_RECEIVED), make_situation(_RECEIVED)
    fitted = await parts.quoted.fit(turn, situation, make_cut(5), 8)
    assert fitted is not None
    return fitted


async def has_used(parts: CompactionParts, tokens: int) -> bool:
    """Whether exactly so many tokens of the budget are used."""
    await parts.ledger.finish()
    left = _BUDGET_TOKENS - tokens
    one_too_many = await parts.budget.spend(_TENANT, left + 1)
    return one_too_many is None and await parts.budget.spend(_TENANT, left) is not None


@pytest.mark.parametrize("reply", [say("It works."), TimeoutError()], ids=["no usage", "no reply"])
async def test_a_call_whose_usage_is_unknown_counts_as_estimated(reply: ModelReply | Exception) -> None:
    async with compaction_parts(reply) as parts:
        fitted = await fit(parts)
        try:
            await parts.client.ask(_TENANT, fitted)
        except UpstreamFailed:
            assert isinstance(reply, Exception)
        assert await has_used(parts, fitted.prompt_tokens)


@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_a_call_that_the_upstream_refuses_uses_no_tokens(status: int) -> None:
    async with compaction_parts(refuse(status, "The model `toy` does not exist")) as parts:
        with pytest.raises(UpstreamFailed):
            await parts.client.ask(_TENANT, await fit(parts))
        assert await has_used(parts, 0)
