"""A worker's connection to the process that serves its store. All calls of one moment leave together.

A call that is cancelled is carried out, and its reply is dropped: a reply is matched by a number that no
other call ever has.
"""

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gateway.store.errors import Damaged, Foreign, Locked, StoreError, Unusable
from gateway.store.news import Listener
from gateway.store.served.calls import (
    Asking,
    NewsReply,
    RefusedReply,
    StoreAnswer,
    StoreCall,
    Telling,
    parse_replies,
    render_messages,
)
from gateway.store.served.frames import MessageLine, open_line

_log = logging.getLogger(__name__)

# As much as waits for a disk.
_MAX_QUEUED_BYTES: Final = 64 << 20
_WATCH_SECONDS: Final = 1.0
_ERRORS: Final[Mapping[str, type[StoreError]]] = {
    each.__name__: each for each in (Damaged, Foreign, Locked, Unusable)
}


class _OpenCall:
    """ends: of the patience with this call."""

    def __init__(self, ends: float) -> None:
        self.answer: asyncio.Future[StoreAnswer] = asyncio.get_running_loop().create_future()
        self.ends = ends


class StoreConnection:
    """connected: to a `StoreServer`. Several stores may use one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._connected = connected
        self._line: MessageLine | None = None
        self._numbers = itertools.count()
        self._calls: list[StoreCall] = []
        self._queued_bytes = 0
        self._waiting: dict[int, _OpenCall] = {}
        self._listeners: list[Listener] = []
        self._watch: asyncio.TimerHandle | None = None
        self._has_warned = False

    @property
    def is_open(self) -> bool:
        return self._line is not None and not self._line.is_lost

    @property
    def waiting_bytes(self) -> int:
        """What the other side has not taken yet."""
        unsent_bytes = self._line.unsent_bytes if self._line is not None else 0
        return unsent_bytes + self._queued_bytes

    async def open(self) -> None:
        """Does nothing if it is open already."""
        if self._line is None:
            self._line = await open_line(self._connected, self._take, self._lose)

    def close(self) -> None:
        if self._line is not None:
            self._flush()
            self._line.close()
        else:
            self._connected.close()

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def tell(self, call: Telling, size_bytes: int = 0) -> None:
        """Queued. Dropped if the other side has gone, or does not take what is queued already."""
        if not self.is_open:
            _log.debug("store: a write after the end of the connection is dropped")
        elif self._has_room(size_bytes):
            self._queue(call, size_bytes)
        elif not self._has_warned:
            self._has_warned = True
            _log.warning(
                "store: the supervisor takes nothing, writes are dropped; further cases are not logged"
            )

    async def ask(
        self, make_call: Callable[[int], Asking], seconds: float, size_bytes: int = 0
    ) -> StoreAnswer:
        """The reply. Raises StoreError if it is an error, if it does not come in time, or if the other side
        has gone.
        """
        if not self.is_open:
            raise Unusable("the store cannot be reached")
        if not self._has_room(size_bytes):
            raise StoreError("too much is waiting to be written")
        number = next(self._numbers)
        waiting = self._waiting[number] = _OpenCall(time.monotonic() + seconds)
        self._queue(make_call(number), size_bytes)
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(_WATCH_SECONDS, self._give_up_late)
        return await waiting.answer

    def _has_room(self, size_bytes: int) -> bool:
        return size_bytes == 0 or self.waiting_bytes + size_bytes <= _MAX_QUEUED_BYTES

    def _queue(self, call: StoreCall, size_bytes: int) -> None:
        if not self._calls:
            asyncio.get_running_loop().call_soon(self._flush)
        self._calls.append(call)
        self._queued_bytes += size_bytes

    def _flush(self) -> None:
        calls, self._calls, self._queued_bytes = self._calls, [], 0
        if calls and self._line is not None:
            self._line.send(render_messages(calls))

    def _take(self, message: bytes) -> None:
        try:
            replies = parse_replies(message)
        except msgspec.MsgspecError:
            _log.exception("store: the supervisor has sent a message that cannot be read")
            return
        for reply in replies:
            if isinstance(reply, NewsReply):
                for listener in self._listeners:
                    listener(reply.owner_tag, reply.text)
            else:
                self._settle(reply)

    def _settle(self, reply: StoreAnswer) -> None:
        waiting = self._waiting.pop(reply.number, None)
        if waiting is None or waiting.answer.done():
            return
        if isinstance(reply, RefusedReply):
            waiting.answer.set_exception(_ERRORS.get(reply.kind, StoreError)(reply.text))
        else:
            waiting.answer.set_result(reply)

    def _lose(self) -> None:
        """Ends all calls under way: no reply will come."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.answer.done():
                each.answer.set_exception(Unusable("the store cannot be reached any more"))

    def _give_up_late(self) -> None:
        """The serving process is stopped or very busy. Its late replies are dropped."""
        self._watch, now = None, time.monotonic()
        late = [number for number, waiting in self._waiting.items() if waiting.ends < now]
        for number in late:
            waiting = self._waiting.pop(number)
            if not waiting.answer.done():
                waiting.answer.set_exception(StoreError("the store did not answer in time"))
        if self._waiting:
            self._watch = asyncio.get_running_loop().call_later(_WATCH_SECONDS, self._give_up_late)
