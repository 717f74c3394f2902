"""The way to the server: all commands of one moment in one round trip, on one connection, run by tasks of its
own.

A caller that waits for a reply may be cancelled; the round trip is not. While the server is away, each
command is answered at once with a refusal, and the connection is opened again in the background.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gateway.store.errors import StoreError
from gateway.store.redis.address import Address
from gateway.store.redis.condition import Condition
from gateway.store.redis.patience import Patience
from gateway.store.redis.replies import AWAY, ENDING, FINAL, RefusalKind, Reply, ServerRefusal
from gateway.store.redis.scripts import Script
from gateway.store.redis.session import Command, Session, SessionError

# Of one round trip. Larger ones would keep later commands waiting.
_BATCH_COMMANDS: Final = 256
_BATCH_BYTES: Final = 1 << 20
# Round trips under way. The commands of further ones wait, and go together.
_FLIGHTS: Final = 16
# What is sent within the time of a small round trip; more gets more time.
_BYTES_PER_TIMEOUT: Final = 512 << 10
# Connecting takes several round trips, and TLS more. Only the start of the gateway waits for it.
_CONNECT_SECONDS: Final = 1.0
# Whether the server is there, and still holds its records, is asked so often.
_CHECK_SECONDS: Final = 1.0


@dataclass(frozen=True)
class ScriptCall:
    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | bytes | int] = ()


ServerCall = Command | ScriptCall


@dataclass(frozen=True, eq=False)
class _Waiting:
    """then: is called with the reply. is_second_try: the server did not know the script."""

    call: ServerCall
    then: Callable[[Reply], None]
    is_second_try: bool = False


@dataclass(frozen=True, eq=False)
class _Flight:
    """A round trip under way. sent_at_slice: how many slices had passed until then."""

    batch: Sequence[_Waiting]
    size_bytes: int
    sent_at_slice: int


class ServerLink:
    """epoch: the name of a key that lives as long as the records of the server."""

    def __init__(self, address: Address, epoch: str, *, is_silent: bool = False) -> None:
        self.condition = Condition(address, is_silent=is_silent)
        self.shown = address.shown
        # Whether another link to the same server logs what happens to it.
        self.is_silent = is_silent
        self._address = address
        self._epoch = epoch
        self._seconds = address.timeout_ms / 1000
        self._queue: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        # Round trips under way, the oldest first.
        self._flights: deque[_Flight] = deque()
        self._has_flights = asyncio.Event()
        # Of all round trips so far: what one has waited for counts for those behind it, too.
        self._slices = 0
        # Digests of the scripts that were sent on this connection.
        self._sent_scripts: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._first_failure: asyncio.Future[SessionError | None] | None = None

    @property
    def is_up(self) -> bool:
        return self.condition.is_up

    async def open(self) -> None:
        """Returns after the first try to connect. Raises StoreError if the server refuses this gateway."""
        self._first_failure = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        error = await self._first_failure
        if error is not None and error.is_final:
            await self.close()
            raise StoreError(f"store {self._address.shown} refuses this gateway: {error}")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def ask(self, call: ServerCall) -> "asyncio.Future[Reply]":
        """The reply to the command. The future may be cancelled at any time."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.send(call, lambda reply: None if future.done() else future.set_result(reply))
        return future

    def send(self, call: ServerCall, then: Callable[[Reply], None]) -> None:
        """`then` is called with the reply, or with AWAY, in any case and perhaps at once."""
        if not self.is_up:
            then(AWAY)
            return
        self._queue.append(_Waiting(call, then))
        self._wake.set()

    # Connecting

    async def _run(self) -> None:
        try:
            while True:
                session = Session(self._address)
                try:
                    await self._use(session)
                finally:
                    await session.close()
                await asyncio.sleep(self.condition.next_pause_seconds())
        finally:
            self.condition.end()
            self._answer_rest()

    async def _use(self, session: Session) -> None:
        """Returns once the server or the connection has failed."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await session.open()
            await self._try(session)
            self._note_first(None)
            await self._serve(session)
        except TimeoutError:
            self._fail(SessionError("it does not answer in time"))
        except SessionError as error:
            self._fail(error)

    async def _try(self, session: Session) -> None:
        """Returns once the server has answered in time. Raises SessionError, TimeoutError."""
        while True:
            async with Patience(self._seconds):
                own_epoch = secrets.token_hex(8)
                (reply,) = await session.exchange([self._make_check(own_epoch)])
            if isinstance(reply, ServerRefusal) and (reply.kind in ENDING | FINAL):
                raise SessionError(reply.kind.value, is_final=reply.kind in FINAL)
            self._sent_scripts.clear()
            if self.condition.note_trial(reply, own_epoch.encode()):
                return
            await asyncio.sleep(self.condition.next_pause_seconds())

    def _fail(self, error: SessionError) -> None:
        self.condition.note_failure(error)
        self._answer_rest()
        self._note_first(error)

    def _note_first(self, error: SessionError | None) -> None:
        if self._first_failure is not None and not self._first_failure.done():
            self._first_failure.set_result(error)

    # Round trips

    async def _serve(self, session: Session) -> None:
        """Runs commands until the server or the connection fails. Raises SessionError, TimeoutError.

        A round trip does not wait for the one before: a server that is 35 ms away costs 35 ms, not twice.
        """
        tasks = [asyncio.create_task(self._send_all(session)), asyncio.create_task(self._read_all(session))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _send_all(self, session: Session) -> None:
        """Raises SessionError."""
        loop = asyncio.get_running_loop()
        check_at = loop.time() + _CHECK_SECONDS
        timer = loop.call_at(check_at, self._wake.set)
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if loop.time() >= check_at:
                    check_at = loop.time() + _CHECK_SECONDS
                    timer = loop.call_at(check_at, self._wake.set)
                    self._check()
                while self._queue and len(self._flights) < _FLIGHTS:
                    flight, commands = self._take_batch()
                    self._flights.append(flight)
                    self._has_flights.set()
                    await session.send(commands)
        finally:
            timer.cancel()

    async def _read_all(self, session: Session) -> None:
        """Raises SessionError, TimeoutError."""
        while True:
            await self._has_flights.wait()
            flight = self._flights[0]
            seconds = self._seconds * (1 + flight.size_bytes // _BYTES_PER_TIMEOUT)
            async with Patience(seconds, self._slices - flight.sent_at_slice) as patience:
                replies = await session.read_all(len(flight.batch))
            self._slices += patience.passed_here
            self._flights.popleft()
            if not self._flights:
                self._has_flights.clear()
            self._wake.set()
            for waiting, reply in zip(flight.batch, replies, strict=True):
                self._deliver(waiting, reply)
            kinds = {reply.kind for reply in replies if isinstance(reply, ServerRefusal)} & ENDING
            if kinds:
                raise SessionError(kinds.pop().value)

    def _take_batch(self) -> tuple[_Flight, list[Command]]:
        batch: list[_Waiting] = []
        commands: list[Command] = []
        batch_bytes = 0
        while self._queue and len(batch) < _BATCH_COMMANDS and batch_bytes < _BATCH_BYTES:
            waiting = self._queue.popleft()
            command = self._render(waiting)
            batch.append(waiting)
            commands.append(command)
            batch_bytes += sum(len(word) for word in command if isinstance(word, bytes))
        return _Flight(batch, batch_bytes, self._slices), commands

    def _render(self, waiting: _Waiting) -> Command:
        """A script travels in full once per connection; from then on the server knows it by its digest."""
        call = waiting.call
        if not isinstance(call, ScriptCall):
            return call
        script = call.script
        is_known = script.digest in self._sent_scripts and not waiting.is_second_try
        self._sent_scripts.add(script.digest)
        first = ("EVALSHA", script.digest) if is_known else ("EVAL", script.text)
        return (*first, len(call.keys), *call.keys, *call.arguments)

    def _deliver(self, waiting: _Waiting, reply: Reply) -> None:
        if (
            isinstance(reply, ServerRefusal)
            and reply.kind is RefusalKind.NO_SCRIPT
            and not waiting.is_second_try
        ):
            self._queue.append(_Waiting(waiting.call, waiting.then, is_second_try=True))
            return
        is_ending = isinstance(reply, ServerRefusal) and reply.kind in ENDING
        waiting.then(AWAY if is_ending else reply)

    def _answer_rest(self) -> None:
        self._has_flights.clear()
        while self._flights:
            for waiting in self._flights.popleft().batch:
                waiting.then(AWAY)
        while self._queue:
            self._queue.popleft().then(AWAY)

    def _check(self) -> None:
        own_epoch = secrets.token_hex(8)
        note = partial(self.condition.note_epoch, own_epoch=own_epoch.encode())
        self.send(self._make_check(own_epoch), note)

    def _make_check(self, own_epoch: str) -> Command:
        """Shows whether the server takes writes, and whether it still holds what it held: the epoch that was
        set before, by whichever process.
        """
        return ("SET", self._epoch, own_epoch, "NX", "GET")
