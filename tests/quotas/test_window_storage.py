"""A storage of the library that offers its sliding window alone."""

import pytest
from limits import RateLimitItemPerHour
from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

from gateway.quotas.served import ServedStorage


async def never(_: bytes) -> bytes:
    raise AssertionError("nothing is asked")


async def test_fixed_windows_are_not_offered() -> None:
    storage = ServedStorage(never)
    with pytest.raises(NotImplementedError):
        await FixedWindowRateLimiter(storage).hit(RateLimitItemPerHour(1), "k")
    for call in (
        storage.get("k"),
        storage.get_expiry("k"),
        storage.check(),
        storage.reset(),
        storage.clear("k"),
        storage.clear_sliding_window("k", 60),
    ):
        with pytest.raises(NotImplementedError):
            await call


def test_moving_windows_are_not_offered() -> None:
    with pytest.raises(NotImplementedError):
        MovingWindowRateLimiter(ServedStorage(never))
