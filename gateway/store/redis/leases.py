"""Leases on the server: a key with an expiry, whose value names fence and process.

While the server cannot be reached, or takes no writes, this process goes on alone: every lease is granted,
with the fence 0, and what is written under it is written later, if no other process has.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from gateway.store.leases import Held, Lease
from gateway.store.record import check_key, render_record
from gateway.store.redis.link import ScriptCall, ServerLink
from gateway.store.redis.naming import Naming
from gateway.store.redis.news import MAX_FENCE_DIGITS, RedisNews
from gateway.store.redis.replies import Reply, ServerRefusal
from gateway.store.redis.scripts import CLAIM, RELEASE, RENEW, WRITE_FENCED
from gateway.store.redis.writer import RecordWriter

_ALONE: Final = 0
# A release may be heard before the reply that the lease is held has been looked at.
_REMEMBERED: Final = 1_024


class RedisLeases:
    def __init__(self, link: ServerLink, naming: Naming, news: RedisNews, writer: RecordWriter) -> None:
        self._link = link
        self._naming = naming
        self._news = news
        self._writer = writer
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._released: deque[tuple[str, int]] = deque(maxlen=_REMEMBERED)
        news.listen(release=self._note_release, gap=self.wake_all)

    async def claim(self, key: str, rivals: Sequence[str], *, keep_seconds: float) -> Lease | Held:
        keys = (key, *rivals)
        names = [self._naming.make_fence(key), *map(self._naming.name, keys)]
        reply = await self._link.ask(ScriptCall(CLAIM, names, (self._news.process, _to_ms(keep_seconds))))
        match reply:
            case [1, bytes(fence)]:
                return Lease(key, _read_fence(fence))
            case [0, int(place), bytes(holder), int(left_ms)] if 0 < place <= len(keys):
                return Held(keys[place - 1], _read_fence(holder), max(left_ms, 0) / 1000)
            case _:
                return Lease(key, _ALONE)

    async def renew(self, lease: Lease, *, keep_seconds: float) -> bool:
        if lease.fence == _ALONE:
            return True
        arguments = (self._make_holder(lease), lease.fence, _to_ms(keep_seconds))
        return await self._link.ask(ScriptCall(RENEW, self._list_names(lease), arguments)) != 0

    async def write(self, lease: Lease, key: str, value: bytes, *, keep_seconds: float) -> bool:
        """Raises StoreError."""
        check_key(key)
        if lease.fence != _ALONE and self._link.is_up:
            names = (*self._list_names(lease), self._naming.name(key))
            record = render_record(key, value)
            arguments = (self._make_holder(lease), lease.fence, _to_ms(keep_seconds), record)
            reply = await self._link.ask(ScriptCall(WRITE_FENCED, names, arguments))
            if not isinstance(reply, ServerRefusal):
                return reply == 1
        return await self._writer.write_new(key, value, keep_seconds=keep_seconds) == value

    async def release(self, lease: Lease) -> None:
        if lease.fence == _ALONE:
            return
        message = self._news.make_release(lease.key, lease.fence)
        arguments = (self._make_holder(lease), self._news.channel, message)
        call = ScriptCall(RELEASE, (self._naming.name(lease.key),), arguments)
        self._link.send(call, partial(self._note_reply, lease))

    async def wait(self, held: Held) -> None:
        if (held.key, held.fence) in self._released or not self._link.is_up:
            return
        event = asyncio.Event()
        waiting = self._waiting.setdefault(held.key, set())
        waiting.add(event)
        try:
            async with asyncio.timeout(held.seconds_left):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            waiting.discard(event)
            if not waiting and self._waiting.get(held.key) is waiting:
                del self._waiting[held.key]

    def wake_all(self) -> None:
        """All who wait look again: the server is away, or a release may have been missed.

        The server that is back may be a replica that has not heard of the releases before.
        """
        self._released.clear()
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    def _note_reply(self, lease: Lease, reply: Reply) -> None:
        """A release that the server has not confirmed has not happened: the lease ends with its time."""
        if reply == 1:
            self._note_release(lease.key, lease.fence)

    def _note_release(self, key: str, fence: int) -> None:
        self._released.append((key, fence))
        for event in self._waiting.get(key, ()):
            event.set()

    def _make_holder(self, lease: Lease) -> str:
        return f"{lease.fence}:{self._news.process}"

    def _list_names(self, lease: Lease) -> tuple[str, str]:
        return self._naming.name(lease.key), self._naming.make_fence(lease.key)


def _read_fence(holder: bytes) -> int:
    fence = holder.partition(b":")[0]
    return int(fence) if fence.isdigit() and len(fence) <= MAX_FENCE_DIGITS else _ALONE


def _to_ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))
