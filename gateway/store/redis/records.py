"""Records in Redis: what every store there offers. Knows no leases, no news and no bounds.

A server that is away, slow or full costs a request no more than one short wait: reads find nothing, writes
are kept in memory and are sent when it is back. See `link` and `writer`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.store.errors import Unusable
from gateway.store.keys import find_tag
from gateway.store.redis.address import Address
from gateway.store.redis.link import ScriptCall, ServerLink
from gateway.store.redis.naming import Naming
from gateway.store.redis.reader import Found, RecordReader
from gateway.store.redis.replies import Reply, ServerRefusal
from gateway.store.redis.scripts import Script
from gateway.store.redis.writer import NoteSent, RecordWriter

# Keys that are deleted with one command.
_UNLINKED: Final = 500


class RedisRecords:
    """The keys of one call have one tag, so that its command stays in one slot of a cluster."""

    is_shared = True

    def __init__(
        self,
        address: Address,
        naming: Naming,
        *,
        is_silent: bool = False,
        note_sent: NoteSent | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._naming = naming
        self._link = ServerLink(address, naming.epoch, is_silent=is_silent)
        self._writer = RecordWriter(self._link, naming, note_sent=note_sent, clock=clock)
        self._reader = RecordReader(self._link, naming, self._writer.unsent, clock=clock)
        self._link.condition.listen(up=self._writer.resume)

    @property
    def waiting_bytes(self) -> int:
        """What the server has not been sent yet."""
        return self._writer.unsent.used_bytes

    @property
    def is_away(self) -> bool:
        """Whether the server cannot be reached."""
        return not self._link.condition.is_up

    async def open(self) -> None:
        """A server that cannot be reached is waited for in the background. Raises StoreError if it refuses
        this gateway: its password, its certificate or its rights are wrong.
        """
        await self._link.open()
        self._writer.open()

    async def close(self) -> None:
        await self._writer.close()
        await self._link.close()

    async def read_first(self, keys: Sequence[str]) -> Found | None:
        return (await self._reader.read_groups([keys]))[0]

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[Found | None]:
        return await self._reader.read_groups(groups)

    async def read(self, key: str) -> bytes | None:
        found = await self.read_first((key,))
        return found[1] if found is not None else None

    async def scan(self, prefix: str) -> list[Found]:
        return await self._reader.scan(prefix)

    def write(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        self._writer.write(key, value, keep_seconds=keep_seconds)

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        """While the server is away, the record is kept in memory, and is written when it is back."""
        await self._writer.write_durably(key, value, keep_seconds=keep_seconds)

    async def write_new(self, key: str, value: bytes, *, keep_seconds: float) -> bytes:
        return await self._writer.write_new(key, value, keep_seconds=keep_seconds)

    def delete(self, key: str) -> None:
        self._writer.delete(key)

    async def take(self, key: str) -> bytes | None:
        waiting = self._writer.take_unsent(key)
        reply = await self._link.ask(("GETDEL", self._naming.name(key)))
        if waiting is not None and isinstance(reply, ServerRefusal):
            # The server may have taken it without our knowing.
            self._writer.delete(key)
        return self._reader.parse(key, reply) or waiting

    async def run_script(
        self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]
    ) -> Reply:
        """For values that are not records, such as counts.

        Raises StoreError if the server is away, or refuses it.
        """
        reply = await self._link.ask(ScriptCall(script, list(map(self._naming.name, keys)), arguments))
        if isinstance(reply, ServerRefusal):
            raise Unusable(f"store {self._link.shown}: {reply.kind.value}")
        return reply

    def drop_unsent(self, tag: str) -> None:
        """What waits here for a server that is away, or takes no writes, is not written later."""
        self._writer.unsent.remove_all(lambda key: find_tag(key) == tag)

    async def purge(self, tag: str) -> int:
        """Leases and lists, too, and in a store without bounds also what the bounded ones hold. Raises
        StoreError if the server is away.
        """
        await self._link.ask(("PING",))  # what is on its way arrives first
        gone = self._writer.unsent.remove_all(lambda key: find_tag(key) == tag)
        names = await self._reader.list_names(self._naming.make_tag_pattern(tag))
        for start in range(0, len(names), _UNLINKED):
            if isinstance(await self._link.ask(("UNLINK", *names[start : start + _UNLINKED])), ServerRefusal):
                raise Unusable("the store is away")
        return len(gone | {self._naming.find_key(name) for name in names if self._naming.is_record(name)})
