"""Serves the stores of a gateway to its workers: one connection each, calls in the order of their arrival."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from gateway.store import Store, StoreError
from gateway.store.leases import Lease
from gateway.store.served.calls import (
    AnnounceCall,
    Asking,
    BarrierCall,
    ClaimCall,
    DeleteCall,
    DurableCall,
    HeldReply,
    LeasedCall,
    NewsReply,
    NumberReply,
    PurgeCall,
    ReadCall,
    RecordsReply,
    RefusedReply,
    ReleaseCall,
    RenewCall,
    ScanCall,
    ServiceCall,
    StoreAnswer,
    StoreCall,
    StoreName,
    StoreReply,
    TakeCall,
    Telling,
    ValueReply,
    WaitCall,
    WriteCall,
    parse_calls,
    render_messages,
)
from gateway.store.served.frames import MessageLine, open_line
from gateway.store.served.lease_table import LeaseTable
from gateway.store.stores import Stores

log = logging.getLogger("gateway.store")

# What else is done for all workers, by name. May raise StoreError.
Service = Callable[[bytes], Awaitable[bytes]]


class StoreServer:
    """stores: open ones. services: see `ServedStore.ask`."""

    def __init__(self, stores: Stores, services: Mapping[str, Service]) -> None:
        self.leases = LeaseTable()
        self._stores: Mapping[StoreName, Store] = {
            "main": stores.main,
            "originals": stores.originals,
            "named": stores.named,
        }
        self._services = services
        self._lines: set[_ServedLine] = set()
        self._locks: dict[tuple[StoreName, str], _CountedLock] = {}

    async def connect(self, connected: socket.socket) -> None:
        """Serves a worker until its connection ends, which frees its leases."""
        line = _ServedLine(self)
        await line.open(connected)
        self._lines.add(line)

    async def close(self) -> None:
        """What has been called is still carried out; answers to it may be lost."""
        await asyncio.gather(*(line.finish() for line in list(self._lines)))

    # What a line does for its worker

    def forget(self, line: "_ServedLine") -> None:
        self._lines.discard(line)
        self.leases.drop(line)

    def tell(self, line: "_ServedLine", call: Telling) -> None:
        match call:
            case WriteCall(place, key, value, keep_seconds):
                self._stores[place].write(key, value, keep_seconds=keep_seconds)
            case DeleteCall(place, key):
                self._stores[place].delete(key)
            case ReleaseCall(key, fence):
                self.leases.release(Lease(key, fence))
            case AnnounceCall(owner_tag, text):
                for other in self._lines - {line}:
                    other.reply(NewsReply(owner_tag, text))

    async def answer(self, line: "_ServedLine", call: Asking) -> StoreAnswer:
        """Raises StoreError."""
        match call:
            case ReadCall() | ScanCall() | TakeCall():
                return await self._read(call)
            case DurableCall() | LeasedCall():
                return await self._write(call)
            case PurgeCall(number, place, tag):
                return NumberReply(number, await self._stores[place].purge(tag))
            case BarrierCall(number):
                return NumberReply(number, 1)
            case ServiceCall(number, service, request):
                return ValueReply(number, await self._call(service, request))
            case _:
                return await self._answer_lease(line, call)

    async def _read(self, call: ReadCall | ScanCall | TakeCall) -> StoreAnswer:
        store = self._stores[call.place]
        match call:
            case ReadCall(number, _, groups):
                return RecordsReply(number, await store.read_groups(groups))
            case ScanCall(number, _, prefix):
                return RecordsReply(number, await store.scan(prefix))
            case TakeCall(number, place, key):
                async with self._alone(place, key):
                    return ValueReply(number, await store.take(key))

    async def _write(self, call: DurableCall | LeasedCall) -> StoreAnswer:
        """Between the look at a lease, or at what is stored, and the write nothing else comes."""
        place: StoreName = "main" if isinstance(call, LeasedCall) else call.place
        store, keep_seconds = self._stores[place], call.keep_seconds
        async with self._alone(place, call.key):
            if isinstance(call, LeasedCall):
                if not self.leases.is_held(Lease(call.lease_key, call.fence)):
                    return NumberReply(call.number, 0)
            elif call.is_new:
                stored = await store.write_new(call.key, call.value, keep_seconds=keep_seconds)
                return ValueReply(call.number, stored)
            await store.write_durably(call.key, call.value, keep_seconds=keep_seconds)
            return NumberReply(call.number, 1)

    async def _answer_lease(self, line: "_ServedLine", call: ClaimCall | RenewCall | WaitCall) -> StoreAnswer:
        match call:
            case ClaimCall(number, key, rivals, keep_seconds):
                granted = self.leases.claim(line, key, rivals, keep_seconds)
                if isinstance(granted, Lease):
                    return NumberReply(number, granted.fence)
                return HeldReply(number, *granted)
            case RenewCall(number, key, fence, keep_seconds):
                return NumberReply(number, int(self.leases.renew(Lease(key, fence), keep_seconds)))
            case WaitCall(number, key, fence):
                await self.leases.wait(Lease(key, fence))
                return NumberReply(number, 1)

    async def _call(self, service: str, request: bytes) -> bytes:
        found = self._services.get(service)
        if found is None:
            raise StoreError(f"there is no service {service!r}")
        return await found(request)

    @asynccontextmanager
    async def _alone(self, place: StoreName, key: str) -> AsyncIterator[None]:
        """One at a time for each key."""
        counted = self._locks.setdefault((place, key), _CountedLock())
        counted.users += 1
        try:
            async with counted.lock:
                yield
        finally:
            counted.users -= 1
            if not counted.users:
                del self._locks[place, key]


class _CountedLock:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class _ServedLine:
    """The connection of one worker."""

    def __init__(self, server: StoreServer) -> None:
        self._server = server
        self._line: MessageLine | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies: list[StoreReply] = []

    async def open(self, connected: socket.socket) -> None:
        self._line = await open_line(connected, self._take, self._end)

    def reply(self, reply: StoreReply) -> None:
        """Sent with all others of this moment."""
        if not self._replies:
            asyncio.get_running_loop().call_soon(self._flush)
        self._replies.append(reply)

    async def finish(self) -> None:
        """Returns when everything that was called is done, and ends the connection."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._flush()
        if self._line is not None:
            self._line.close()

    def _take(self, message: bytes) -> None:
        """Begins all calls in their order: a task begins in the order in which it was made."""
        try:
            calls = parse_calls(message)
        except msgspec.MsgspecError:
            log.exception("a worker has sent a message that cannot be read")
            return
        for call in calls:
            self._begin(call)

    def _begin(self, call: StoreCall) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(call, WriteCall | DeleteCall | ReleaseCall | AnnounceCall):
            loop.call_soon(self._server.tell, self, call)
        else:
            task = loop.create_task(self._answer(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Asking) -> None:
        try:
            self.reply(await self._server.answer(self, call))
        except StoreError as error:
            self.reply(RefusedReply(call.number, type(error).__name__, str(error)))
        except Exception as error:
            # The edge: the worker waits for an answer whatever went wrong here.
            log.exception("a call of a worker failed")
            self.reply(RefusedReply(call.number, "StoreError", type(error).__name__))

    def _flush(self) -> None:
        replies, self._replies = self._replies, []
        if replies and self._line is not None:
            self._line.send(render_messages(replies))

    def _end(self) -> None:
        """The worker has gone. What it has called is still carried out."""
        self._server.forget(self)
