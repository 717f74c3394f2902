"""A store in Redis for records that may be lost: beyond a number of bytes the oldest go.

An index, shared by all processes, knows time and size of each record. It lies in a slot of its own, so it
and the records are never in one command: first the records of the oldest entries are deleted, then the
entries. A process that dies between the two leaves entries, which the next one finds again.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway.store.errors import Unusable
from gateway.store.leases import Leases, LocalLeases
from gateway.store.news import News, NoNews
from gateway.store.redis.address import Address
from gateway.store.redis.link import ScriptCall, ServerCall
from gateway.store.redis.naming import make_naming
from gateway.store.redis.reader import decode_name
from gateway.store.redis.records import RedisRecords
from gateway.store.redis.replies import Reply
from gateway.store.redis.scripts import ADD_TO_INDEX, CHOOSE_OLDEST, DROP_FROM_INDEX

# Memory of the server beside key and value: the record's own and its index entry.
_OVERHEAD_BYTES: Final = 400
# Records that are dropped with one round trip.
_DROPPED: Final = 64
# The index lies in one slot.
_PARTS: Final = ("{index}times", "{index}sizes", "{index}total")


class BoundedRedisStore(RedisRecords):
    """It logs nothing of the server: the store of conversations does, at the same address."""

    def __init__(
        self, address: Address, name: str, max_bytes: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        naming = make_naming(address, name)
        super().__init__(address, naming, is_silent=True, note_sent=self._note_sent, clock=clock)
        self.leases: Leases = LocalLeases(self)
        self.news: News = NoNews()
        self._max_bytes = max_bytes
        self._clock = clock
        self._index = tuple(map(naming.name, _PARTS))
        self._trimming: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._trimming is not None:
            await asyncio.gather(self._trimming, return_exceptions=True)
        await super().close()

    async def purge(self, tag: str) -> int:
        count = await super().purge(tag)
        entries = await self._list_entries(tag)
        for start in range(0, len(entries), _DROPPED):
            await self._link.ask(ScriptCall(DROP_FROM_INDEX, self._index, entries[start : start + _DROPPED]))
        return count

    def _note_sent(self, key: str, size_bytes: int) -> None:
        """Runs before the record itself is sent, in the same round trip."""
        if not size_bytes:
            self._link.send(ScriptCall(DROP_FROM_INDEX, self._index, (key,)), lambda reply: None)
            return
        cost_bytes = size_bytes + len(key) + _OVERHEAD_BYTES
        arguments = (key, cost_bytes, int(self._clock() * 1000))
        self._link.send(ScriptCall(ADD_TO_INDEX, self._index, arguments), self._note_total)

    def _note_total(self, total: Reply) -> None:
        if isinstance(total, int) and total > self._max_bytes and self._trimming is None:
            self._trimming = asyncio.create_task(self._trim())
            self._trimming.add_done_callback(self._note_trimmed)

    def _note_trimmed(self, task: "asyncio.Task[None]") -> None:
        self._trimming = None

    async def _trim(self) -> None:
        """Returns once the rest is small enough, or the server is away."""
        while members := await self._choose_oldest():
            await asyncio.gather(*(self._link.ask(call) for key in members for call in self._list_drops(key)))
            dropped = await self._link.ask(ScriptCall(DROP_FROM_INDEX, self._index, members))
            if not isinstance(dropped, int):
                return

    async def _choose_oldest(self) -> list[str]:
        reply = await self._link.ask(ScriptCall(CHOOSE_OLDEST, self._index, (self._max_bytes, _DROPPED)))
        members = reply if isinstance(reply, list) else []
        return [decode_name(member) for member in members if isinstance(member, bytes)]

    def _list_drops(self, key: str) -> list[ServerCall]:
        """The record, and its place in its list."""
        listed = self._naming.find_list(key)
        place: list[ServerCall] = [("ZREM", listed.list_name, listed.member)] if listed is not None else []
        return [("UNLINK", self._naming.name(key)), *place]

    async def _list_entries(self, tag: str) -> list[str]:
        """Keys of a tag in the index. Raises StoreError if the server is away."""
        found: list[str] = []
        cursor = b"0"
        while True:
            match await self._link.ask(
                ("HSCAN", self._index[1], cursor, "MATCH", f"*{{{tag}}}*", "COUNT", 1_000)
            ):
                case [bytes(next_cursor), list(fields)]:
                    found += [decode_name(field) for field in fields[::2] if isinstance(field, bytes)]
                    cursor = next_cursor
                case _:
                    raise Unusable("the store is away")
            if cursor == b"0":
                return found
