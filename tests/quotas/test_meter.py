"""Counting within a window, and how long a refused attempt has to wait."""

import asyncio
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits.aio.storage import MemoryStorage

from gateway.quotas.meter import Rate, RateMeter, WindowCounts, find_wait

# A window of the library begins with each multiple of its length since 1970.
_RATE = Rate("quota:{tag}requests", 3, 3_600)


async def test_as_much_as_the_limit_is_counted_and_the_rest_is_refused() -> None:
    meter = RateMeter(MemoryStorage())
    assert [await meter.count(_RATE) for _ in range(3)] == [0.0] * 3
    assert 0 < await meter.count(_RATE) <= 2 * _RATE.seconds


async def test_keys_are_counted_apart() -> None:
    meter = RateMeter(MemoryStorage())
    for key in ("quota:{a}requests", "quota:{b}requests"):
        assert await meter.count(_RATE._replace(key=key), cost=3) == 0.0
    assert await meter.count(_RATE._replace(key="quota:{a}requests")) > 0


async def test_what_is_refused_is_not_counted() -> None:
    meter = RateMeter(MemoryStorage())
    assert await meter.count(_RATE, cost=2) == 0.0
    for _ in range(5):
        assert await meter.count(_RATE, cost=2) > 0
    assert await meter.count(_RATE) == 0.0


async def test_counts_go_on_when_the_limit_changes() -> None:
    meter = RateMeter(MemoryStorage())
    await meter.count(_RATE, cost=3)
    assert await meter.count(_RATE._replace(most=5), cost=2) == 0.0
    assert await meter.count(_RATE._replace(most=5)) > 0


@pytest.mark.parametrize(("change", "left"), [(2, 0), (-1, 3), (0, 2), (100, 0)])
async def test_a_correction_counts_without_a_limit(change: int, left: int) -> None:
    meter = RateMeter(MemoryStorage())
    await meter.count(_RATE)
    await meter.correct(_RATE, change)
    assert len([wait for _ in range(5) if not (wait := await meter.count(_RATE))]) == left


async def test_a_limit_of_nothing_refuses_everything() -> None:
    assert await RateMeter(MemoryStorage()).count(_RATE._replace(most=0)) == _RATE.seconds


async def test_what_is_larger_than_the_limit_waits_for_a_window() -> None:
    assert await RateMeter(MemoryStorage()).count(_RATE, cost=4) == _RATE.seconds


async def test_who_waits_as_long_as_told_gets_through() -> None:
    """The clock is the library's, so the window is short."""
    meter, rate = RateMeter(MemoryStorage()), Rate("quota:{tag}requests", 4, 1)
    for _ in range(3):
        wait_seconds = await meter.count(rate)
        while not wait_seconds:
            wait_seconds = await meter.count(rate)
        told = time.monotonic()
        await asyncio.sleep(wait_seconds)
        assert await meter.count(rate) == 0.0, (wait_seconds, time.monotonic() - told)


_COUNTS = st.integers(0, 50)
_PARTS = st.floats(0.001, 1.0)


def allows(counts: WindowCounts, rate: Rate, cost: int, after_seconds: float) -> bool:
    """What the library decides after some time in which nothing is counted."""
    shift_seconds = counts.current_seconds - rate.seconds
    if not counts.current or after_seconds < shift_seconds:
        previous, lives, current = counts.previous, counts.previous_seconds - after_seconds, counts.current
    else:
        previous, lives, current = counts.current, counts.current_seconds - after_seconds, 0
    return math.floor(previous * max(0.0, lives) / rate.seconds) + current + cost <= rate.most


@given(_COUNTS, _COUNTS, _PARTS, st.integers(1, 50), st.integers(1, 50))
def test_the_wait_is_long_enough_and_hardly_longer(
    previous: int, current: int, part: float, most: int, cost: int
) -> None:
    """part: of the current window that is still to come. The previous one counts by as much."""
    cost, rate = min(cost, most), Rate("k", most, 60)
    lives = 60 * part
    counts = WindowCounts(previous, lives if previous else 0.0, current, 60 + lives if current else 0.0)
    wait_seconds = find_wait(counts, rate, cost)
    assert allows(counts, rate, cost, wait_seconds + 1e-9)
    assert wait_seconds == 0 or not allows(counts, rate, cost, max(0.0, wait_seconds - 0.01))
