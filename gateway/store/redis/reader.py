"""Reads from the server, with what this process has not sent yet in front of it.

A record of another type, one that is damaged, and one that was written for another key count as absent. The
log says so once.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.store.errors import StoreError, Unusable
from gateway.store.record import parse_record
from gateway.store.redis.link import ScriptCall, ServerLink
from gateway.store.redis.naming import Naming
from gateway.store.redis.replies import RefusalKind, Reply, ServerRefusal
from gateway.store.redis.scripts import READ_FIRST
from gateway.store.redis.unsent import Unsent

_log = logging.getLogger("gateway.store.redis")

Found = tuple[str, bytes]
# A script is given at most so many keys: it runs for well under a millisecond.
_KEYS: Final = 500

_DAMAGED: Final = "store %s: a damaged record counts as absent; further cases are not logged"
_OF_ANOTHER_TYPE: Final = "store %s: a record of another type counts as absent; further cases are not logged"


@dataclass(frozen=True)
class _Lookup:
    """keys: to ask the server for. waiting: what stands behind them in this process."""

    keys: Sequence[str]
    waiting: Found | None


class RecordReader:
    def __init__(
        self,
        link: ServerLink,
        naming: Naming,
        unsent: Unsent,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._link = link
        self._naming = naming
        self._unsent = unsent
        self._clock = clock
        self._has_warned = False

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[Found | None]:
        """For each group the first key that exists; one round trip for all of them."""
        lookups = [self._plan(group) for group in groups]
        asked = [self._ask(lookup.keys) if lookup.keys else None for lookup in lookups]
        found: list[Found | None] = []
        for lookup, future in zip(lookups, asked, strict=True):
            first = await self._finish(lookup.keys, await future) if future is not None else None
            found.append(first or lookup.waiting)
        return found

    async def read_all(self, keys: Sequence[str]) -> list[Found]:
        """Those that exist."""
        found = await self.read_groups([(key,) for key in keys])
        return [each for each in found if each is not None]

    async def scan(self, prefix: str) -> list[Found]:
        """In the order of the keys. A list knows its members; for any other prefix all keys are looked at."""
        list_name = self._naming.find_list_of(prefix)
        if list_name is not None:
            reply = await self._link.ask(("ZRANGE", list_name, 0, -1))
            members = reply if isinstance(reply, list) else []
            keys = {f"{prefix}{decode_name(member)}" for member in members if isinstance(member, bytes)}
        else:
            pattern = f"{escape_pattern(self._naming.root + prefix)}*"
            keys = {self._naming.find_key(name) for name in await self._list_names_if_up(pattern)}
        keys |= {write.key for write in self._unsent if write.key.startswith(prefix)}
        return sorted(await self.read_all(list(keys)))

    async def list_names(self, pattern: str) -> list[str]:
        """Names on the server. Looks at all keys, so no request may wait for it. Raises StoreError."""
        names: list[str] = []
        cursor: bytes = b"0"
        while True:
            reply = await self._link.ask(("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000))
            match reply:
                case [bytes(next_cursor), list(page)]:
                    names += [decode_name(name) for name in page if isinstance(name, bytes)]
                    cursor = next_cursor
                case _:
                    raise Unusable("the store is away")
            if cursor == b"0":
                return names

    async def _list_names_if_up(self, pattern: str) -> list[str]:
        try:
            return await self.list_names(pattern)
        except StoreError:
            return []

    def parse(self, key: str, reply: Reply) -> bytes | None:
        """The payload of a record."""
        if isinstance(reply, ServerRefusal):
            if reply.kind is RefusalKind.WRONG_TYPE:
                self._warn(_OF_ANOTHER_TYPE)
            return None
        if not isinstance(reply, bytes):
            return None
        payload = parse_record(key, reply)
        if payload is None:
            self._warn(_DAMAGED)
        return payload

    def _plan(self, keys: Sequence[str]) -> _Lookup:
        """A key that was deleted here is not asked for, and behind one that waits here none is."""
        asked: list[str] = []
        if not len(self._unsent):
            return _Lookup(keys, None)
        now = self._clock()
        for key in keys:
            write = self._unsent.find(key)
            if write is None or write.if_absent:
                asked.append(key)
            if write is not None and (value := write.read(now)) is not None:
                return _Lookup(asked, (key, value))
        return _Lookup(asked, None)

    def _ask(self, keys: Sequence[str]) -> "asyncio.Future[Reply]":
        return self._link.ask(ScriptCall(READ_FIRST, [self._naming.name(key) for key in keys[:_KEYS]]))

    async def _finish(self, keys: Sequence[str], reply: Reply) -> Found | None:
        """Further keys are asked for if there are very many, or if what was found is damaged."""
        while True:
            match reply:
                case [int(position), bytes(record), int(wrong)] if 0 <= position <= min(len(keys), _KEYS):
                    if wrong:
                        self._warn(_OF_ANOTHER_TYPE)
                case _:
                    return None
            if position:
                key = keys[position - 1]
                payload = self.parse(key, record)
                if payload is not None:
                    return key, payload
            keys = keys[position or _KEYS :]
            if not keys:
                return None
            reply = await self._ask(keys)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(text, self._link.shown)


def decode_name(name: bytes) -> str:
    """All of ours are ASCII. What something else has put among them is not, and belongs to no record."""
    return name.decode("ascii", "replace")


def escape_pattern(text: str) -> str:
    """For MATCH."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in text)
