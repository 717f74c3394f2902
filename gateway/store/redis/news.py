"""News over pub/sub: one connection that only listens, and one channel for all tenants.

What is announced while this process, or another one, has no connection is lost. The generation says so: it
grows with each loss and with each return.
"""

import asyncio
import secrets
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from gateway.store.news import Listener
from gateway.store.redis.address import Address
from gateway.store.redis.link import ServerLink
from gateway.store.redis.naming import Naming
from gateway.store.redis.patience import Patience
from gateway.store.redis.replies import Reply
from gateway.store.redis.session import Session, SessionError

_CONNECT_SECONDS: Final = 1.0
# The server is asked for a sign of life so often, and has so much time for one.
_PING_SECONDS: Final = 1.0
_SILENCE_SECONDS: Final = 3.0
_PAUSES_SECONDS: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)

# A fence is a time in microseconds.
MAX_FENCE_DIGITS: Final = 20


class _Kind(StrEnum):
    """Of a message."""

    CHANGE = "change"
    RELEASE = "release"
    MISSED = "missed"


class RedisNews:
    def __init__(self, address: Address, naming: Naming, link: ServerLink) -> None:
        self._address = address
        self._channel = naming.channel
        self._link = link
        # Names this process, which hears its own messages, too.
        self._process = secrets.token_hex(8)
        self._generation = 0
        self._has_missed = False
        self._listeners: list[Listener] = []
        self._on_release: list[Callable[[str, int], None]] = []
        self._on_gap: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._first_try: asyncio.Event = asyncio.Event()

    @property
    def process(self) -> str:
        return self._process

    @property
    def channel(self) -> str:
        return self._channel

    @property
    def generation(self) -> int:
        return self._generation

    def announce(self, tag: str, text: str) -> None:
        self._publish(f"{self._process} {_Kind.CHANGE} {tag} {text}")

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def listen(self, *, release: Callable[[str, int], None], gap: Callable[[], None]) -> None:
        """release: key and fence of a lease that another process has released. gap: some may have been
        missed.
        """
        self._on_release.append(release)
        self._on_gap.append(gap)

    def make_release(self, key: str, fence: int) -> str:
        """The message that a lease is released; a script publishes it."""
        return f"{self._process} {_Kind.RELEASE} {key} {fence}"

    def grow(self) -> None:
        """Something may have been missed or lost."""
        self._generation += 1
        for listener in self._on_gap:
            listener()

    def resume(self, written: int) -> None:
        """The server is back, and has what this process has written meanwhile. Others have missed that."""
        self.grow()
        if self._has_missed or written:
            self._has_missed = False
            self._publish(f"{self._process} {_Kind.MISSED}")

    async def open(self) -> None:
        """Returns once it listens, or has failed to; at once if the server is away."""
        self._task = asyncio.create_task(self._run())
        if self._link.is_up:
            await self._first_try.wait()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _publish(self, message: str) -> None:
        self._link.send(("PUBLISH", self._channel, message), self._note_published)

    def _note_published(self, reply: Reply) -> None:
        if not isinstance(reply, int):
            self._has_missed = True

    async def _run(self) -> None:
        failures = 0
        while True:
            session = Session(self._address)
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await session.open()
                    await session.exchange([("SUBSCRIBE", self._channel)])
                failures = 0
                self._note_start()
                await self._listen(session)
            except (SessionError, TimeoutError):
                pass  # whether the server is there is logged where commands are sent
            finally:
                await session.close()
            self._first_try.set()
            if self._link.is_up:
                self.grow()
            await asyncio.sleep(_PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)])
            failures += 1

    def _note_start(self) -> None:
        if self._first_try.is_set():
            self.grow()
        self._first_try.set()

    async def _listen(self, session: Session) -> None:
        """Raises SessionError, TimeoutError."""
        pinging = asyncio.create_task(_ping(session))
        try:
            while True:
                async with Patience(_SILENCE_SECONDS):
                    reply = await session.read()
                if isinstance(reply, list) and len(reply) == 3 and isinstance(reply[2], bytes):
                    self._hear(reply[2].decode("utf-8", "replace"))
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)

    def _hear(self, message: str) -> None:
        sender, _, rest = message.partition(" ")
        kind, _, rest = rest.partition(" ")
        if sender == self._process:
            return
        first, _, second = rest.partition(" ")
        match kind:
            case _Kind.CHANGE:
                for listener in self._listeners:
                    listener(first, second)
            case _Kind.RELEASE if second.isdecimal() and len(second) <= MAX_FENCE_DIGITS:
                for tell in self._on_release:
                    tell(first, int(second))
            case _Kind.MISSED:
                self.grow()
            case _:
                pass  # of another version


async def _ping(session: Session) -> None:
    """A connection on which nothing arrives any more is found by the missing reply."""
    while True:
        await asyncio.sleep(_PING_SECONDS)
        await session.send([("PING",)])
