"""Stores as processes see them: the one file of the contract that knows how they are called.

A `Backend` is a place where processes meet: memory, a folder, a folder of several workers, or Redis. A `User`
is one process there. Time is the test's, but on Redis.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from gateway.quotas.ledger import Backend as Counts
from gateway.quotas.ledger import Ledger, QuotaPlace
from gateway.quotas.meter import Rate, WindowCounts, find_wait
from gateway.quotas.places import KEEP_SECONDS, LocalPlaces
from gateway.quotas.redis import make_redis_backend
from gateway.quotas.served import SERVICE, QuotaServer, make_served_backend
from gateway.store import Store, StoreError, open_bounded_store, open_store
from gateway.store.disk import DiskStore
from gateway.store.keys import make_key, make_tag
from gateway.store.leases import Held, Lease
from gateway.store.memory import MemoryStore
from gateway.store.record import render_record
from gateway.store.redis.store import RedisStore
from gateway.store.served.connection import StoreConnection
from gateway.store.served.lease_table import LeaseTable
from tests.store.clock import Clock
from tests.store.served.serving import Serving, serving
from tests.toy.redis_server import requires_redis
from tests.toy.shared_store import SharedStore, ToyServer

__all__ = ["Held", "Lease", "StoreError"]
# The toy is here because tests of several processes in one rely on it.
SHARED: Final = ("toy", "workers", pytest.param("redis", marks=requires_redis))
EVERY: Final = ("memory", "disk", *SHARED)
TIMED: Final = ("memory", "disk", "toy", "workers")
OWNER: Final = "tenant"


class Key(NamedTuple):
    kind: str
    name: str
    owner: str = OWNER

    @property
    def stored(self) -> str:
        return make_key(make_tag(self.owner), self.kind, self.name)


def head(name: object, owner: str = OWNER) -> Key:
    return Key("head", str(name), owner)


class User:
    """One process. heard: what others have announced. missed: grows when some of that may be lost."""

    def __init__(self, store: Store, counts: Counts | None = None, renew_seconds: float = 60.0) -> None:
        self.store = store
        self.ledger = Ledger(counts, renew_seconds)
        self.heard: list[str] = []
        store.news.subscribe(lambda _, text: self.heard.append(text))

    @property
    def missed(self) -> int:
        return self.store.news.generation

    # Records

    async def get(self, *keys: Key) -> tuple[Key, bytes] | None:
        """The first that exists."""
        return (await self.get_groups([keys]))[0]

    async def get_groups(self, groups: Sequence[Sequence[Key]]) -> list[tuple[Key, bytes] | None]:
        names = {key.stored: key for group in groups for key in group}
        found = await self.store.read_groups([[key.stored for key in group] for group in groups])
        return [(names[each[0]], each[1]) if each is not None else None for each in found]

    async def read(self, key: Key) -> bytes | None:
        return await self.store.read(key.stored)

    async def list_all(self, kind: str, owner: str = OWNER, group: str = "") -> list[tuple[str, bytes]]:
        """group: the part of the name before a colon; a conversation."""
        prefix = make_key(make_tag(owner), kind, f"{group}:" if group else "")
        return [(name.removeprefix(prefix), value) for name, value in await self.store.scan(prefix)]

    def put(self, key: Key, value: bytes = b"x", seconds: float = 60.0) -> None:
        self.store.write(key.stored, value, keep_seconds=seconds)

    def drop(self, key: Key) -> None:
        self.store.delete(key.stored)

    async def put_durable(self, key: Key, value: bytes = b"x", seconds: float = 60.0) -> None:
        await self.store.write_durably(key.stored, value, keep_seconds=seconds)

    async def put_new(self, key: Key, value: bytes = b"x", seconds: float = 60.0) -> bytes:
        return await self.store.write_new(key.stored, value, keep_seconds=seconds)

    async def take(self, key: Key) -> bytes | None:
        return await self.store.take(key.stored)

    async def delete(self, owner: str = OWNER) -> int:
        return await self.store.purge(make_tag(owner))

    # Leases

    async def claim(self, name: str, *rivals: str, seconds: float = 30.0, owner: str = OWNER) -> Lease | Held:
        own, *others = [Key("lease", each, owner).stored for each in (name, *rivals)]
        return await self.store.leases.claim(own, others, keep_seconds=seconds)

    async def hold_lease(self, name: str, *rivals: str, seconds: float = 30.0) -> Lease:
        granted = await self.claim(name, *rivals, seconds=seconds)
        assert isinstance(granted, Lease)
        return granted

    async def find_holder(self, name: str, *rivals: str) -> Held:
        found = await self.claim(name, *rivals)
        assert isinstance(found, Held)
        return found

    async def renew(self, lease: Lease, seconds: float = 30.0) -> bool:
        return await self.store.leases.renew(lease, keep_seconds=seconds)

    async def put_under(self, lease: Lease, key: Key, value: bytes = b"x") -> bool:
        return await self.store.leases.write(lease, key.stored, value, keep_seconds=60.0)

    async def release(self, lease: Lease) -> None:
        await self.store.leases.release(lease)

    async def until_free(self, held: Held) -> None:
        await self.store.leases.wait(held)

    # News

    def publish(self, text: str, owner: str = OWNER) -> None:
        self.store.news.announce(make_tag(owner), text)

    # Counters and places

    async def count(self, cost: int = 1, most: int = 3, seconds: int = 3_600, name: str = "calls") -> float:
        """0, or the seconds until there may be room."""
        return await self.ledger.count(_make_rate(name, most, seconds), cost)

    async def correct(self, change: int, most: int = 3) -> None:
        await self.ledger.correct(_make_rate("calls", most, 3_600), change)

    def make_place(self, name: str = "places") -> QuotaPlace:
        return self.ledger.make_place(Key("quota", name).stored)

    async def hold(self, place: QuotaPlace, most: int = 1) -> bool:
        return await self.ledger.take(place, most)

    def let_go(self, place: QuotaPlace) -> None:
        self.ledger.give_back(place)


def _make_rate(name: str, most: int, seconds: int) -> Rate:
    return Rate(Key("quota", name).stored, most, seconds)


class Backend:
    """kind: one of EVERY. redis_url: of an empty server, for the kind redis."""

    def __init__(self, kind: str, folder: Path, redis_url: str = "") -> None:
        self.kind = kind
        self.clock = Clock()
        self._folder = folder
        self._redis_url = redis_url
        self._exits = AsyncExitStack()
        self._toy = ToyServer(self.clock)
        self._serving: Serving | None = None
        self._connections: dict[User, StoreConnection] = {}

    async def connect(self, renew_seconds: float = 60.0) -> User:
        match self.kind:
            case "memory":
                return await self._open(User(MemoryStore(clock=self.clock)))
            case "disk":
                return await self._open(User(open_disk(self._folder, self.clock)))
            case "toy":
                return await self._open(User(self._toy.connect()))
            case "workers":
                served = await self._serve()
                store = await served.connect()
                counts = make_served_backend(partial(store.ask, SERVICE))
                user = await self._open(User(store, counts, renew_seconds), is_open=True)
                self._connections[user] = served.connections[-1]
                return user
            case _:
                return await self._open(open_redis(self._redis_url))

    async def connect_two(self) -> tuple[User, User]:
        return await self.connect(), await self.connect()

    def kill(self, user: User) -> None:
        """As if its process had ended without a word. Of workers and of the toy."""
        if isinstance(user.store, SharedStore):
            user.store.cut()
            self._toy.end_leases()
        else:
            self._connections[user].close()

    async def close(self) -> None:
        # Nobody waits for a lease any more that a failed test has left.
        self.clock.now += 1e6
        await self._exits.aclose()

    async def _serve(self) -> Serving:
        if self._serving is None:
            main = open_disk(self._folder, self.clock)
            opening = serving(main, {SERVICE: QuotaServer().answer})
            self._serving = await self._exits.enter_async_context(opening)
            self._serving.server.leases = LeaseTable(self.clock)
        return self._serving

    async def _open(self, user: User, *, is_open: bool = False) -> User:
        if not is_open:
            await user.store.open()
        await user.ledger.open()
        self._exits.push_async_callback(user.store.close)
        self._exits.push_async_callback(user.ledger.close)
        return user


class Supervisor:
    """Counts for all processes that are connected to it, unless it is away. calls: what it was asked for."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.is_away = False
        self.calls: list[str] = []
        self._server = QuotaServer()
        self._server._places = LocalPlaces(KEEP_SECONDS, self.clock)  # its clock is real

    @asynccontextmanager
    async def processes(self, count: int, renew_seconds: float = 60.0) -> AsyncIterator[list[User]]:
        users = [User(MemoryStore(), make_served_backend(self._answer), renew_seconds) for _ in range(count)]
        for user in users:
            await user.ledger.open()
        try:
            yield users
        finally:
            for user in users:
                await user.ledger.close()

    async def _answer(self, request: bytes) -> bytes:
        self.calls.append(msgspec.msgpack.decode(request)[0])
        if self.is_away:
            raise StoreError("the supervisor is away")
        return await self._server.answer(request)


def find_window_wait(counts: tuple[int, float, int, float], most: int, cost: int) -> float:
    """Within 60 seconds. counts: of the window before and of this one, with the seconds of each."""
    return find_wait(WindowCounts(*counts), Rate("k", most, 60), cost)


def open_disk(folder: Path, clock: Callable[[], float] | None = None, **options: Any) -> DiskStore:
    """Not opened yet."""
    options |= {"clock": clock} if clock is not None else {}
    return DiskStore(folder / "store", linger_seconds=0.01, **options)


def open_redis(url: str) -> User:
    """Not opened yet."""
    store = open_store(url)
    assert isinstance(store, RedisStore)
    return User(store, make_redis_backend(store))


def open_bounded(url: str, name: str, max_bytes: int) -> User:
    """Beside the state, for records that may be lost: the oldest go first. Not opened yet."""
    return User(open_bounded_store(url, name, max_bytes))


def seal(key: Key, value: bytes) -> bytes:
    """What is stored for a value: damage shows, and that it belongs to another key."""
    return render_record(key.stored, value)
