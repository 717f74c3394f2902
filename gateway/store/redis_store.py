"""Redis, or Valkey, as a store of several replicas.

A record on the server is sealed: its group, a line end, its value. See `redis_scripts` for all names.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, TypeVar

import msgspec

from gateway.store import redis_scripts as texts
from gateway.store.interface import (
    LATEST,
    Found,
    HeldLease,
    HeldPlace,
    Key,
    Lease,
    ListedRecord,
    Lookup,
    SlidingWindow,
    StoreError,
    StoreRefused,
    Unknown,
    seal,
    unseal,
)
from gateway.store.queue import QueuedStore
from gateway.store.redis_address import Address
from gateway.store.redis_link import (
    Argument,
    RedisCall,
    RedisLink,
    RedisNews,
    Script,
    ServerReply,
    take_reply,
)
from gateway.store.waiting import (
    FREED,
    Deleted,
    Drop,
    LetGo,
    News,
    NumberedPurge,
    Put,
    Release,
    Take,
    Waiting,
    Written,
)

_log = logging.getLogger("gateway.store.redis")

_Form = TypeVar("_Form")

# The layout of the records of another version is another one: its names begin with another prefix.
_VERSION: Final = 2
_WRITE, _WRITE_LITTLE, _READ = Script(texts.WRITE), Script(texts.WRITE_LITTLE), Script(texts.READ)
_CLAIM, _RENEW = Script(texts.CLAIM), Script(texts.RENEW)
_COUNT, _HOLD = Script(texts.COUNT), Script(texts.HOLD)
_PURGE, _SWEEP, _CHECK = Script(texts.PURGE), Script(texts.SWEEP), Script(texts.CHECK)

# A script is given at most so many names, and a page of a list holds so many records: both take about 1 ms.
_READ_NAMES: Final = 2_000
_PAGE_RECORDS: Final = 200
_SWEEP_RECORDS: Final = 500
# Of counters and places: each process counts alone if the server is silent for longer.
_ADMISSION_SECONDS: Final = 0.25
# So often a write that waits for a server looks whether the store is to be closed.
_LOOK_SECONDS: Final = 0.1
# Arguments of the script before the values.
_FIRST_VALUE: Final = 3
_encode: Final = msgspec.msgpack.encode
# News of a purge have this in place of a tag.
_PURGED: Final = "!purged"
# A fence is a time in microseconds.
_FENCE_DIGITS: Final = 16

_DAMAGED: Final = "store %s: a damaged record counts as absent; further cases are not logged"
_OF_ANOTHER_TYPE: Final = "store %s: a record of another type counts as absent; further cases are not logged"


class RedisStore(QueuedStore):
    is_shared = True

    def __init__(self, address: Address) -> None:
        super().__init__(address.shown)
        self._prefix = f"{address.prefix}{_VERSION}:"
        # Subscriptions know no databases, so the channel names it.
        self._channel = f"{self._prefix}news:{address.database}"
        # Names this process, which hears its own news, too.
        self._process = secrets.token_hex(8)
        self._link = RedisLink(address)
        self._news = RedisNews(address, self._channel, hear=self._hear_message, gap=self._miss)
        self._epoch: bytes | None = None
        self._started_at = 0.0
        # Purges up to this number were made before this process began. It writes nothing before it knows it.
        self._first_known = 0
        self._checked: asyncio.Future[ServerReply]
        self._listing = asyncio.Lock()
        self._warned: set[str] = set()

    async def _connect(self) -> int:
        try:
            await self._open_link()
        except BaseException:  # also a cancellation leaves no connection open
            await self._disconnect()
            raise
        return self._known

    async def _open_link(self) -> None:
        self._started_at = time.monotonic()
        self._checked = asyncio.get_running_loop().create_future()
        await self._link.open(self._send_check, self._note_check)
        self._news.open()
        if not self._link.is_away:
            await self._news.has_tried.wait()
        failure = self._news.failure
        if failure is not None and failure.is_final:
            raise StoreRefused(f"store {self.shown} refuses this gateway: {failure.reason}")

    async def _disconnect(self) -> None:
        await self._news.close()
        await self._link.close()

    def _find_patience(self, wait: float) -> float:
        return min(wait, self._link.find_patience(wait))

    def _note_trouble(self, error: StoreError) -> None:
        if not self._link.is_away:
            _log.warning("store %s takes no writes (%s): records wait in memory", self.shown, error)

    def _note_taken(self) -> None:
        _log.info("store %s takes writes again", self.shown)

    # Records

    async def _read(self, tag: str, lookups: Sequence[Lookup], wait: float) -> list[Found | None]:
        self._link.check_patience(wait)
        calls = [
            self._send(
                _READ, _encode([[f"{each.kind}:{tag}:{name}" for name in each.names] for each in part])
            )
            for part in _split(lookups)
        ]
        pairs: list[tuple[int, bytes]] = []
        for call in calls:
            found, wrong = _expect(await self._link.ask(call, wait), tuple[list[tuple[int, bytes]], int])
            pairs += found
            if wrong:
                self._warn(_OF_ANOTHER_TYPE)
        if len(pairs) != len(lookups):
            raise _make_odd()
        asked = zip(lookups, pairs, strict=True)
        return [await self._finish(tag, lookup, pair, wait) for lookup, pair in asked]

    async def _finish(self, tag: str, lookup: Lookup, pair: tuple[int, bytes], wait: float) -> Found | None:
        """Behind one that is damaged the first that is not."""
        position, text = pair
        if not 0 <= position <= len(lookup.names):
            raise _make_odd()
        if not position:
            return None
        name, *rest = lookup.names[position - 1 :]
        record = self._parse(Key(tag, lookup.kind, name), text)
        if record is not None:
            return Found(name, record.value)
        keys = [Key(tag, lookup.kind, each) for each in rest]
        for at in range(0, len(keys), _PAGE_RECORDS):
            for found in await self._fetch(keys[at : at + _PAGE_RECORDS], wait):
                return Found(found.key.name, found.value)
        return None

    async def _list(self, kind: str, tag: str | None, group: str | None, wait: float) -> list[ListedRecord]:
        """One page at a time, so that what is looked up meanwhile hardly waits."""
        records: dict[Key, ListedRecord] = {}
        async with self._listing:
            for owner in [tag] if tag is not None else [name async for name in self._scan("tags", wait)]:
                index = f"index:{owner}:{kind}" if group is None else f"group:{owner}:{group}"
                start = f"{kind}:{owner}:"
                names = {name async for name in self._scan(index, wait) if name.startswith(start)}
                keys = [Key(owner, kind, name.removeprefix(start)) for name in names]
                for at in range(0, len(keys), _PAGE_RECORDS):
                    page = await self._fetch(keys[at : at + _PAGE_RECORDS], wait)
                    records |= {each.key: each for each in page if group in (None, each.group)}
        return list(records.values())

    async def _scan(self, index: str, wait: float) -> AsyncIterator[str]:
        """The members of a sorted set, some of them perhaps twice."""
        cursor = b"0"
        while True:
            asked = "ZSCAN", self._prefix + index, cursor, "COUNT", 1_000
            cursor, members = _expect(await self._ask(None, *asked, wait=wait), tuple[bytes, list[bytes]])
            for member in members[::2]:
                yield _decode(member)
            if cursor == b"0":
                return

    async def _fetch(self, keys: Sequence[Key], wait: float) -> list[ListedRecord]:
        """Those that exist."""
        reply = await self._ask(None, "MGET", *(f"{self._prefix}{_name(key)}" for key in keys), wait=wait)
        if not isinstance(reply, list) or len(reply) != len(keys):
            raise _make_odd()
        parsed = [self._parse(key, text) for key, text in zip(keys, reply, strict=True) if text is not None]
        return [record for record in parsed if record is not None]

    def _parse(self, key: Key, text: ServerReply) -> ListedRecord | None:
        unsealed = unseal(key, text) if isinstance(text, bytes) else None
        if unsealed is None:
            self._warn(_DAMAGED)
            return None
        group, _, value = unsealed.partition(b"\n")
        return ListedRecord(key, _decode(group), value)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning(text, self.shown)

    # Writes

    async def _write(self, batch: Sequence[Waiting]) -> Written:
        """Waits for a server that is away. What was under way when it was lost is sent again."""
        await self._until_done(self._checked)
        replies, purges = await self._send_batch(batch)
        results, damaged = self._parse_results(batch, replies)
        if damaged:
            # What is damaged stands for nothing, so it is replaced.
            written, _ = await self._send_batch([put for _, put in damaged], replaces=True)
            for (at, put), reply in zip(damaged, written, strict=True):
                results[at] = put.value if reply == 1 else None
        return Written(results, purges)

    async def _send_batch(
        self, batch: Sequence[Waiting], *, replaces: bool = False
    ) -> tuple[Sequence[ServerReply], Sequence[NumberedPurge]]:
        has_records = any(isinstance(waiting, Put) for waiting in batch)
        script = _WRITE if has_records else _WRITE_LITTLE
        call = self._link.send(script, partial(self._render_batch, batch, replaces))
        try:
            await self._until_done(call.future)
        finally:
            call.is_wanted = False
        replies, purges = _expect(take_reply(call), tuple[list[Any], list[Any]])
        if len(replies) != len(batch):
            raise _make_odd()
        return replies, _parse_purges(purges)

    async def _until_done(self, future: "asyncio.Future[ServerReply]") -> None:
        """Raises Unknown if the server is away when the store closes."""
        while not future.done():
            if not self._is_open and self._link.is_away:
                raise Unknown("the store is away")
            await asyncio.wait({future}, timeout=_LOOK_SECONDS)

    def _render_batch(self, batch: Sequence[Waiting], replaces: bool) -> Sequence[Argument]:
        """When it is sent: who was promised something may have gone on alone since."""
        values: list[bytes] = []
        operations = [self._render_operation(waiting, replaces, values) for waiting in batch]
        return self._prefix, _encode(operations), self._known, *values

    def _render_operation(
        self, waiting: Waiting, replaces: bool, values: list[bytes]
    ) -> Sequence[str | int | bool]:
        """values: gets what the operation names by its place among the arguments of the script."""
        match waiting:
            case Waiting(is_purged=True) | Take(is_late=True):
                return ("skip",)
            case Put(key=key):
                values.append(seal(key, waiting.group.encode() + b"\n" + waiting.value))
                known = max(waiting.known, self._first_known)
                lease = waiting.wants_lease
                fence = (lease.name, lease.fence) if lease is not None else ("", 0)
                is_new = waiting.wants_absent and not replaces
                place = _FIRST_VALUE + len(values)
                return ("put", *key, waiting.group, known, _to_ms(waiting.ttl), place, is_new, *fence)
            case Drop(key=key):
                return ("drop", *key)
            case Take(key=key):
                return ("take", *key)
            case Release(lease=lease):
                message = f"{self._process} {lease.tag} {waiting.news}"
                return ("release", lease.tag, lease.name, lease.fence, self._channel, message)
            case LetGo(tag=tag, name=name):
                return ("let_go", tag, name, waiting.member)
            case News(tag=tag, text=text):
                return ("publish", self._channel, f"{self._process} {tag} {text}")
            case _:
                raise TypeError(type(waiting).__name__)

    def _parse_results(
        self, batch: Sequence[Waiting], replies: Sequence[ServerReply]
    ) -> tuple[list[bytes | None], list[tuple[int, Put]]]:
        """What became of each; and what must be written again, because it found something damaged."""
        results: list[bytes | None] = []
        damaged: list[tuple[int, Put]] = []
        for at, (waiting, reply) in enumerate(zip(batch, replies, strict=True)):
            value = None
            match waiting, reply:
                case Put(), 1:
                    value = waiting.value
                case Put(key=key), bytes(text):
                    found = self._parse(key, text)
                    value = found.value if found is not None else None
                    if found is None:
                        damaged.append((at, waiting))
                case Take(key=key), [bytes(text), int(left_ms)]:
                    value = self._take_out(waiting, self._parse(key, text), left_ms)
            results.append(value)
        return results, damaged

    @staticmethod
    def _take_out(take: Take, found: ListedRecord | None, left_ms: int) -> bytes | None:
        if found is None:
            return None
        ttl = max(left_ms, 0) / 1000
        take.taken = Put(key=take.key, value=found.value, ttl=ttl, group=found.group, if_absent=True)
        return found.value

    async def _delete(self, tag: str, group: str | None, known: int) -> Deleted:
        message = f"{self._process} {_PURGED} {tag}"
        asked = (tag, group or "", self._channel, message, known)
        gone, more, purges = _expect(await self._ask(_PURGE, *asked), tuple[int, int, list[Any]])
        while more == 1:
            more = await self._ask(_SWEEP, _SWEEP_RECORDS)
        return Deleted(gone, _parse_purges(purges))

    # Leases, counters, places

    async def _claim(self, tag: str, name: str, ttl: float) -> Lease | HeldLease:
        self._link.check_patience(LATEST)
        call = self._send(_CLAIM, tag, name, _to_ms(ttl), secrets.token_hex(8))
        try:
            return _parse_claim(tag, name, await self._link.ask(call, LATEST))
        except Unknown:
            # It may be granted all the same. Then this process has gone on without it.
            call.future.add_done_callback(partial(self._give_back, tag, name))
            raise

    def _give_back(self, tag: str, name: str, future: "asyncio.Future[ServerReply]") -> None:
        with suppress(Unknown):
            lease = _parse_claim(tag, name, None if future.cancelled() else future.result())
            if isinstance(lease, Lease):
                self.release(lease)

    async def _renew(self, lease: Lease, ttl: float) -> bool:
        asked = (lease.tag, lease.name, _to_ms(ttl), lease.fence)
        return _parse_flag(await self._ask(_RENEW, *asked))

    async def _count(self, tag: str, name: str, cost: float, most: float, window: float) -> float:
        asked = (tag, name, repr(cost), repr(most), repr(window))
        reply = await self._ask(_COUNT, *asked, wait=_ADMISSION_SECONDS)
        has_room, *counted = _expect(reply, tuple[Literal[0, 1], bytes, bytes, bytes, bytes])
        if has_room:
            return 0.0
        slot, used, before, now = map(_parse_number, counted)
        return max(0.001, SlidingWindow(int(slot), used, before).find_wait(cost, most, window, now))

    async def _hold(self, place: HeldPlace, leaving: Sequence[str], most: int, ttl: float) -> bool:
        asked: Sequence[Argument] = (*place, most, _to_ms(ttl), *leaving)
        return _parse_flag(await self._ask(_HOLD, *asked, wait=_ADMISSION_SECONDS))

    # What others do, and what becomes of the server

    def _send_check(self) -> RedisCall:
        return self._link.send(_CHECK, self._render_check)

    def _render_check(self) -> Sequence[Argument]:
        """Before the first reply: how long this process has run, in µs, when it is sent."""
        run_us = int((time.monotonic() - self._started_at) * 1e6)
        return self._prefix, secrets.token_hex(8), self._known if self._checked.done() else run_us

    def _note_check(self, reply: ServerReply) -> None:
        match reply:
            case [bytes(epoch), bytes(known), list(purges)] if _is_fence(known):
                pass
            case _:
                return
        if not self._checked.done():
            self._known = self._first_known = int(known)
            self._checked.set_result(None)
        before, self._epoch = self._epoch, epoch
        if before is not None and before != epoch:
            _log.warning("store %s has lost its records: what is in use is written again", self.shown)
            self._miss()
        self._learn(_parse_purges(purges))

    def _hear_message(self, message: bytes) -> None:
        sender, _, rest = _decode(message).partition(" ")
        tag, _, text = rest.partition(" ")
        if sender == self._process:
            return
        if tag == _PURGED:
            # The reply has all purges that this process does not know, not only this one.
            self._send_check().future.add_done_callback(self._note_early_check)
        elif not text.startswith(FREED) or _is_release(text):
            self._hear(tag, text)

    def _note_early_check(self, future: "asyncio.Future[ServerReply]") -> None:
        if not future.cancelled():
            self._note_check(future.result())

    # Asking

    def _send(self, script: Script | None, *arguments: Argument) -> RedisCall:
        sent = (self._prefix, *arguments) if script is not None else arguments
        return self._link.send(script, lambda: sent, is_bulk=script is None)

    async def _ask(self, script: Script | None, *arguments: Argument, wait: float = LATEST) -> ServerReply:
        """Raises Unknown, Unusable."""
        self._link.check_patience(wait)
        return await self._link.ask(self._send(script, *arguments), wait)


def _make_odd() -> Unknown:
    return Unknown("the store answers what no store does")


def _name(key: Key) -> str:
    return f"{key.kind}:{key.tag}:{key.name}"


def _split(lookups: Sequence[Lookup]) -> Iterator[list[Lookup]]:
    """Into parts that one script call may look up."""
    part: list[Lookup] = []
    size = 0
    for lookup in lookups:
        if part and size + len(lookup.names) > _READ_NAMES:
            yield part
            part, size = [], 0
        part.append(lookup)
        size += len(lookup.names)
    yield part


def _decode(text: ServerReply) -> str:
    """All of ours is ASCII. What something else has put there is not, and belongs to no record."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else ""


def _to_ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _expect(reply: ServerReply, form: type[_Form]) -> _Form:
    """Raises Unknown for a reply of another form."""
    try:
        return msgspec.convert(reply, form)
    except msgspec.ValidationError as error:
        raise _make_odd() from error


def _parse_flag(reply: ServerReply) -> bool:
    (flag,) = _expect([reply], tuple[Literal[0, 1]])
    return flag == 1


def _parse_number(text: ServerReply) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError) as error:
        raise _make_odd() from error
    if not math.isfinite(number):
        raise _make_odd()
    return number


def _parse_claim(tag: str, name: str, reply: ServerReply) -> Lease | HeldLease:
    is_ours, fence, left_ms = _expect(reply, tuple[Literal[0, 1], bytes, int])
    if not _is_fence(fence):
        raise _make_odd()
    return (
        Lease(tag, name, int(fence)) if is_ours else HeldLease(tag, name, int(fence), max(0, left_ms) / 1000)
    )


def _is_fence(text: bytes) -> bool:
    return text.isdigit() and len(text) <= _FENCE_DIGITS


def _parse_purges(flat: Sequence[ServerReply]) -> list[NumberedPurge]:
    """Of `TAG` or `TAG GROUP`, each with its number, the oldest first."""
    purges: list[NumberedPurge] = []
    for member, number in zip(flat[::2], flat[1::2], strict=False):
        tag, has_group, group = _decode(member).partition(" ")
        if isinstance(number, bytes) and _is_fence(number):
            purges.append(NumberedPurge(int(number), tag, group if has_group else None))
    return purges


def _is_release(text: str) -> bool:
    parts = text.split(" ", 2)
    return len(parts) == 3 and parts[1].isdecimal() and len(parts[1]) <= _FENCE_DIGITS
