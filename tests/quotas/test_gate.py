"""Who gets 429, what it says, and what is held while a request runs."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.core.errors import RequestRefused
from gateway.quotas.gate import QuotaGate
from gateway.quotas.ledger import Ledger
from gateway.reporting.metrics import Metrics
from gateway.tenants import Tenant
from tests.builders.quotas import make_limited_tenant
from tests.store.clock import Clock


def make_gate(clock: Clock | None = None, metrics: Metrics | None = None) -> QuotaGate:
    return QuotaGate(Ledger(), metrics or Metrics(), clock or Clock())


async def enter(gate: QuotaGate, tenant: Tenant, requests: AsyncExitStack) -> RequestRefused | None:
    """A request that runs until `requests` end, or why it was refused."""
    assert tenant.quota is not None
    try:
        await requests.enter_async_context(gate.admit(tenant, tenant.quota))
    except RequestRefused as error:
        return error
    return None


async def test_more_requests_in_a_minute_than_allowed_get_429_with_a_time() -> None:
    gate, tenant = make_gate(), make_limited_tenant(requests_per_minute=2)
    for _ in range(2):
        async with AsyncExitStack() as requests:
            assert await enter(gate, tenant, requests) is None
    async with AsyncExitStack() as requests:
        refused = await enter(gate, tenant, requests)
    assert refused is not None
    assert (refused.status, refused.kind, refused.code) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert refused.retry_after_seconds is not None and 1 <= refused.retry_after_seconds <= 121
    seconds = refused.retry_after_seconds
    assert str(refused) == (
        "Rate limit of the gateway reached: this tenant may send 2 requests a minute. "
        f"Try again in {seconds} s."
    )


async def test_more_requests_at_once_than_allowed_get_429_until_one_ends() -> None:
    gate, tenant = make_gate(), make_limited_tenant(concurrent_requests=1)
    async with AsyncExitStack() as others:
        async with AsyncExitStack() as first:
            assert await enter(gate, tenant, first) is None
            refused = await enter(gate, tenant, others)
        assert refused is not None and "1 requests at the same time" in str(refused)
        assert await enter(gate, tenant, others) is None


async def test_tenants_are_limited_apart() -> None:
    gate = make_gate()
    async with AsyncExitStack() as requests:
        for name in ("a", "b"):
            tenant = make_limited_tenant(name, requests_per_minute=1, concurrent_requests=1)
            assert await enter(gate, tenant, requests) is None
            assert await enter(gate, tenant, requests) is not None


async def test_a_request_that_is_refused_for_its_place_does_not_count_in_the_minute() -> None:
    gate, tenant = make_gate(), make_limited_tenant(requests_per_minute=2, concurrent_requests=1)
    async with AsyncExitStack() as first:
        assert await enter(gate, tenant, first) is None
        for _ in range(5):
            async with AsyncExitStack() as refused:
                assert await enter(gate, tenant, refused) is not None
            await asyncio.sleep(0)
    async with AsyncExitStack() as second:
        assert await enter(gate, tenant, second) is None


async def test_a_request_that_is_refused_for_its_minute_holds_no_place() -> None:
    gate, tenant = make_gate(), make_limited_tenant(requests_per_minute=1, concurrent_requests=1)
    async with AsyncExitStack() as requests:
        assert await enter(gate, tenant, requests) is None
    async with AsyncExitStack() as requests:
        refused = await enter(gate, tenant, requests)
        assert refused is not None and "a minute" in str(refused)
        wider = make_limited_tenant(requests_per_minute=9, concurrent_requests=1)
        assert await enter(gate, wider, requests) is None


async def test_a_request_that_fails_or_is_cancelled_gives_its_place_back() -> None:
    gate, tenant = make_gate(), make_limited_tenant(concurrent_requests=1)
    assert tenant.quota is not None
    for error in (ConnectionError("gone"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with gate.admit(tenant, tenant.quota):
                raise error
    async with AsyncExitStack() as requests:
        assert await enter(gate, tenant, requests) is None


@pytest.mark.parametrize("steps", range(5))
async def test_a_client_that_hangs_up_while_it_is_admitted_leaves_no_place(steps: int) -> None:
    gate, tenant = make_gate(), make_limited_tenant(requests_per_minute=9, concurrent_requests=1)

    async def run() -> None:
        async with AsyncExitStack() as requests:
            await enter(gate, tenant, requests)
            await asyncio.Event().wait()

    running = asyncio.create_task(run())
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with AsyncExitStack() as requests:
        assert await enter(gate, tenant, requests) is None


async def test_the_time_to_wait_for_a_place_follows_how_long_requests_take() -> None:
    clock = Clock()
    gate, tenant = make_gate(clock), make_limited_tenant(concurrent_requests=2)
    for _ in range(40):
        async with AsyncExitStack() as request:
            await enter(gate, tenant, request)
            clock.now += 30.0
    async with AsyncExitStack() as requests:
        found = [await enter(gate, tenant, requests) for _ in range(3)]
    assert found[:2] == [None, None]
    assert found[2] is not None and found[2].retry_after_seconds == 16


async def test_refused_requests_are_counted_by_tenant_and_limit() -> None:
    metrics = Metrics()
    gate = make_gate(metrics=metrics)
    tenant = make_limited_tenant("team-a", requests_per_minute=1)
    async with AsyncExitStack() as requests:
        for _ in range(3):
            await enter(gate, tenant, requests)
    line = 'gateway_limited_requests_total{limit="requests_per_minute",tenant="team-a"} 2.0'
    assert line in metrics.render().decode()
