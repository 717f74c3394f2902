"""Writes to the server: sent at once, kept in memory until it has confirmed them, and sent again later.

No caller waits for a write that the server does not take. What was promised while the server was away is
written when it is back, and a record that must not replace another is then only written if there is none.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from gateway.store.errors import StoreError, Unusable
from gateway.store.record import check_key, parse_record, render_record
from gateway.store.redis.link import ScriptCall, ServerCall, ServerLink
from gateway.store.redis.naming import Naming
from gateway.store.redis.replies import AWAY, RefusalKind, Reply, ServerRefusal
from gateway.store.redis.scripts import ADD_TO_LIST
from gateway.store.redis.unsent import Unsent, Write

_log = logging.getLogger("gateway.store.redis")

_MAX_UNSENT_BYTES: Final = 64 << 20
# Of what is sent again at once, so that reads get their turn.
_REPLAY_WRITES: Final = 128
_REPLAY_BYTES: Final = 1 << 20
# A server that takes no writes is tried again so often.
_RETRY_SECONDS: Final = 1.0
_REFUSED: Final = frozenset({RefusalKind.FULL, RefusalKind.CANNOT_SAVE, RefusalKind.DENIED})
# At the end, what was not confirmed gets so much time.
_CLOSE_SECONDS: Final = 2.0


# Is told each record that goes to the server, with its size, and each that is deleted (0).
NoteSent = Callable[[str, int], None]


class RecordWriter:
    def __init__(
        self,
        link: ServerLink,
        naming: Naming,
        *,
        note_sent: NoteSent | None = None,
        clock: Callable[[], float] = time.time,
        max_bytes: int = _MAX_UNSENT_BYTES,
    ) -> None:
        self.unsent = Unsent(max_bytes)
        # Called once everything that waited was sent again, with the number of records.
        self.on_replayed: Callable[[int], None] = lambda written: None
        self._link = link
        self._naming = naming
        self._note_sent = note_sent
        self._clock = clock
        self._flying: set[Write] = set()
        # New records on their way, by key. The server has not decided yet whether they are new.
        self._racing: dict[str, asyncio.Future[Reply]] = {}
        # The server answers, but has refused a write.
        self._is_refused = False
        self._has_warned = False
        self._is_open = False
        self._due = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._is_open = True
        self._task = asyncio.create_task(self._replay_when_due())
        self._due.set()

    async def close(self) -> None:
        """Sends what is left, as far as the server takes it."""
        if not self._is_open:
            return
        self._is_open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._retry is not None:
            self._retry.cancel()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                while self._link.is_up and await self._finish_some():
                    pass
        except TimeoutError:
            pass
        if len(self.unsent):
            _log.error("store %s: %d records could not be written", self._link.shown, len(self.unsent))

    async def _finish_some(self) -> int:
        """Like `_replay_some`, and waits for what is on its way."""
        await self._link.ask(("PING",))
        return await self._replay_some(_REPLAY_WRITES)

    def resume(self) -> None:
        """The server is back."""
        self._due.set()

    # Writes

    def write(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        check_key(key)
        if not self._is_open:
            _log.debug("store: a write after closing is dropped")
            return
        write = Write(key, value, self._clock() + keep_seconds)
        if self.unsent.put(write):
            self._send(write)
        elif not self._has_warned:
            self._has_warned = True
            _log.warning(
                "store %s: too much waits in memory, writes are dropped; further cases are not logged",
                self._link.shown,
            )

    def delete(self, key: str) -> None:
        check_key(key)
        if self._is_open:
            write = Write(key, None)
            self.unsent.put(write)
            self._send(write)

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        """Returns once the server has confirmed it, or cannot now. Raises StoreError."""
        await self._send(self._promise(key, value, keep_seconds, if_absent=False))

    async def write_new(self, key: str, value: bytes, *, keep_seconds: float) -> bytes:
        """Raises StoreError."""
        racing = self._racing.get(key)
        waiting = self.unsent.find(key)
        known = waiting.read(self._clock()) if waiting is not None else None
        if racing is None:
            if known is not None:
                return known
            racing = self._send(self._promise(key, value, keep_seconds, if_absent=True))
            self._note_race(key, racing)
        elif known is not None:
            value = known  # of the call that is on its way
        reply = await asyncio.shield(racing)
        if not isinstance(reply, bytes):
            return value
        found = parse_record(key, reply)
        if found is None:  # damaged, so it stands for nothing
            await self.write_durably(key, value, keep_seconds=keep_seconds)
        return value if found is None else found

    def _note_race(self, key: str, racing: "asyncio.Future[Reply]") -> None:
        if not racing.done():
            self._racing[key] = racing
            racing.add_done_callback(lambda _: self._racing.pop(key, None))

    def take_unsent(self, key: str) -> bytes | None:
        """A record that waits here. It is no longer seen or sent."""
        write = self.unsent.find(key)
        if write is None or write.value is None:
            return None
        self.unsent.remove(write)
        return write.read(self._clock())

    def _promise(self, key: str, value: bytes, keep_seconds: float, *, if_absent: bool) -> Write:
        check_key(key)
        if not self._is_open:
            raise Unusable("the store is closed")
        expires_at = self._clock() + keep_seconds
        write = Write(key, value, expires_at, if_absent=if_absent, is_promised=True)
        if not self.unsent.put(write):
            raise StoreError("too much is waiting to be written")
        return write

    # Sending

    def _send(self, write: Write, *, is_trial: bool = False) -> "asyncio.Future[Reply]":
        """The reply; AWAY if the write waits in memory. The future may be cancelled, the write is not.

        is_trial: sent even if the server has just refused writes.
        """
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if not self._link.is_up or (self._is_refused and not is_trial):
            future.set_result(AWAY)
            return future
        self._flying.add(write)
        keep_ms = int((write.expires_at - self._clock()) * 1000)
        for call in self._list_companions(write, keep_ms):
            self._link.send(call, lambda reply: None)
        self._link.send(self._render(write, keep_ms), partial(self._settle, write, future))
        return future

    def _render(self, write: Write, keep_ms: int) -> ServerCall:
        name = self._naming.name(write.key)
        if write.value is None or keep_ms <= 0:
            return ("UNLINK", name)
        record = render_record(write.key, write.value)
        command = ("SET", name, record, "PX", keep_ms)
        return (*command, "NX", "GET") if write.if_absent else command

    def _list_companions(self, write: Write, keep_ms: int) -> list[ServerCall]:
        """What else the server has to know of this record. It is sent first, and sent again with it."""
        is_kept = write.value is not None and keep_ms > 0
        if self._note_sent is not None:
            self._note_sent(write.key, len(write.value or b"") if is_kept else 0)
        listed = self._naming.find_list(write.key)
        if listed is None:
            return []
        if is_kept:
            return [ScriptCall(ADD_TO_LIST, (listed.list_name,), (listed.member, keep_ms))]
        return [("ZREM", listed.list_name, listed.member)]

    def _settle(self, write: Write, future: "asyncio.Future[Reply]", reply: Reply) -> None:
        self._flying.discard(write)
        match reply:
            case ServerRefusal(RefusalKind.AWAY):
                pass
            case ServerRefusal(RefusalKind.WRONG_TYPE) if write.if_absent:
                # Something else has written there. It stands for nothing, so it is replaced.
                self._send_replacing(write)
            case ServerRefusal(kind) if kind in _REFUSED:
                self._note_refused(kind)
            case _:
                self.unsent.remove(write)
        if not future.done():
            future.set_result(reply)

    def _send_replacing(self, write: Write) -> None:
        replacing = replace(write, if_absent=False)
        if self.unsent.find(write.key) is write and self.unsent.put(replacing):
            self._send(replacing)

    def _note_refused(self, kind: RefusalKind) -> None:
        """Writes wait in memory; the oldest is tried again after a while."""
        if not self._is_refused and not self._link.is_silent:
            _log.warning(
                "store %s takes no writes (%s): records wait in memory", self._link.shown, kind.value
            )
        self._is_refused = True
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._due.set()

    def _note_accepted(self) -> None:
        """Everything that waited was taken."""
        if self._is_refused and not self._link.is_silent:
            _log.info("store %s takes writes again", self._link.shown)
        self._is_refused = False

    # Sending again

    async def _replay_when_due(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            written, most = 0, 1 if self._is_refused else _REPLAY_WRITES
            while self._link.is_up and (some := await self._replay_some(most)):
                written, most = written + some, _REPLAY_WRITES
            if self._link.is_up:
                self.on_replayed(written)

    async def _replay_some(self, most: int) -> int:
        """The number of writes that the server has taken; 0 if there are none, or if it has refused some."""
        batch = self._choose_batch(most)
        if not batch:
            self._note_accepted()
            return 0
        replies = await asyncio.gather(*(self._send(write, is_trial=True) for write in batch))
        return 0 if any(isinstance(reply, ServerRefusal) for reply in replies) else len(batch)

    def _choose_batch(self, most: int) -> list[Write]:
        """The oldest that are not on their way."""
        batch: list[Write] = []
        batch_bytes, now = 0, self._clock()
        for write in self.unsent:
            if len(batch) >= most or batch_bytes >= _REPLAY_BYTES:
                break
            if write.value is not None and write.expires_at <= now:
                self.unsent.remove(write)
            elif write not in self._flying:
                batch.append(write)
                batch_bytes += write.cost_bytes
        return batch
