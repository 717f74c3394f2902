"""All bodies under way share one budget."""

import pytest

from gateway.bounds.memory_budget import MemoryBudget
from gateway.core.errors import RequestRefused


async def test_a_share_goes_back_when_its_request_ends() -> None:
    budget = MemoryBudget(100)
    with budget.open() as share:
        await share.grow(60)
        await share.grow(40)
        share.shrink(10)
        assert budget.used_bytes == 90
    assert budget.used_bytes == 0


async def test_what_does_not_fit_is_refused_with_a_time_to_try_again() -> None:
    budget = MemoryBudget(100)
    with budget.open() as first, budget.open() as second:
        await first.grow(60)
        with pytest.raises(RequestRefused) as refused:
            await second.grow(41)
    assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1)
