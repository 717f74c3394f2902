"""The store of conversations in Redis: records, leases and news."""

import time
from collections.abc import Callable

from gateway.store.leases import Leases
from gateway.store.news import News
from gateway.store.redis.address import Address
from gateway.store.redis.leases import RedisLeases
from gateway.store.redis.naming import make_naming
from gateway.store.redis.news import RedisNews
from gateway.store.redis.records import RedisRecords


class RedisStore(RedisRecords):
    def __init__(self, address: Address, *, clock: Callable[[], float] = time.time) -> None:
        naming = make_naming(address)
        super().__init__(address, naming, clock=clock)
        self._news = RedisNews(address, naming, self._link)
        self._leases = RedisLeases(self._link, naming, self._news, self._writer)
        self._writer.on_replayed = self._news.resume
        self._link.condition.listen(down=self._leases.wake_all, emptied=self._news.grow)

    @property
    def leases(self) -> Leases:
        return self._leases

    @property
    def news(self) -> News:
        return self._news

    async def open(self) -> None:
        await super().open()
        await self._news.open()

    async def close(self) -> None:
        await self._news.close()
        await super().close()
