"""Storages of the `limits` library that are not in this process."""

from limits.aio.storage import SlidingWindowCounterSupport, Storage

from gateway.store import StoreError


class WindowStorage(Storage, SlidingWindowCounterSupport):
    """A storage of the `limits` library for its sliding window alone, which is counted and read.

    The library asks every storage for more: fixed windows, and ways to forget.
    """

    STORAGE_SCHEME = None

    @property
    def base_exceptions(self) -> type[Exception]:
        return StoreError

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        raise NotImplementedError

    async def get(self, key: str) -> int:
        raise NotImplementedError

    async def get_expiry(self, key: str) -> float:
        raise NotImplementedError

    async def check(self) -> bool:
        raise NotImplementedError

    async def reset(self) -> int | None:
        raise NotImplementedError

    async def clear(self, key: str) -> None:
        raise NotImplementedError

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        raise NotImplementedError
