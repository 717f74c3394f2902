"""The interface of every store: bytes by key for a limited time, leases, counters, news between processes.

A store answers *found*, *absent* or *unknown*. Unknown is an exception, so that it is never taken for absent.
Stores know nothing of what the bytes are.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

# Patience of reads for a request that may as well pass as it came; and where waiting is worth it.
SOON: Final = 0.04
LATEST: Final = 2.0


class StoreError(Exception):
    """A store did not do what it was asked for. The text names no key of a provider and no content."""


class Unknown(StoreError):
    """The store is late or away. What was to be written waits in memory, and will be written."""


class Unusable(StoreError):
    """The store refuses: the disk is full or read-only, or too much waits. What was asked does not wait."""


class StoreRefused(StoreError):
    """Only from `open`: a person must act, and the text says how."""


class Key(NamedTuple):
    """tag: of the owner, see `make_tag`. name: printable ASCII without spaces."""

    tag: str
    kind: str
    name: str


class Lookup(NamedTuple):
    """What is asked for: the first of these names that exists."""

    kind: str
    names: Sequence[str]


class Found(NamedTuple):
    name: str
    value: bytes


class ListedRecord(NamedTuple):
    key: Key
    group: str
    value: bytes


@dataclass(frozen=True)
class Lease:
    """This process does the work. fence: larger than that of every earlier lease of the name; 0 if the store
    is away and this process goes on alone.
    """

    tag: str
    name: str
    fence: int

    @property
    def is_alone(self) -> bool:
        return self.fence == 0


@dataclass(frozen=True)
class HeldLease:
    """Another process does the work, for so long at least unless it ends before."""

    tag: str
    name: str
    fence: int
    seconds_left: float


class HeldPlace(NamedTuple):
    """One of those that a running request holds. tag: of the tenant. name: of the limit."""

    tag: str
    name: str
    member: str


class Listener(Protocol):
    """What changes in the store behind the back of this process. Called on the event loop; must be quick."""

    def on_news(self, tag: str, text: str) -> None:
        """Another process has published this."""
        return

    def on_purged(self, tag: str, group: str | None, number: int) -> None:
        """Everything of the tag is deleted, or of one group of it; also by this process itself. number: the
        time in microseconds since 1970, or more if the clock was ahead before.
        """

    def on_gap(self) -> None:
        """News may have been missed, or the store may have lost records."""
        return


class Store(Protocol):
    """The keys of one call have one tag. Methods that are not async queue: the newest of each key is written
    a moment later, and reads of this process see it at once.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other processes may read and write it at the same time."""

    async def open(self) -> None:
        """Raises StoreRefused. A store that is away is open: what is written waits in memory."""

    async def close(self) -> None:
        """Writes what is queued, for a bounded time. Later writes do nothing."""

    async def get(self, tag: str, lookups: Sequence[Lookup], *, wait: float = SOON) -> list[Found | None]:
        """For each look-up the first of its names that exists; all of them in one round trip.

        Raises Unknown after `wait` seconds; None means that it does not exist.
        """

    async def list(
        self, kind: str, tag: str | None = None, group: str | None = None, *, wait: float = LATEST
    ) -> "list[ListedRecord]":
        """All records of a kind, of one owner, or of one group of it; in no order. Never in the way of `get`.

        Raises Unknown.
        """

    def put(self, key: Key, value: bytes, ttl: float, *, group: str = "", linger: float = 0.0) -> None:
        """Queued. ttl: seconds. group: the conversation. linger: seconds in which a later one replaces it."""

    def drop(self, key: Key) -> None:
        """Queued, in order with the writes of the same key."""

    async def put_durable(  # noqa: PLR0913  # each is asked for by a user
        self,
        key: Key,
        value: bytes,
        ttl: float,
        *,
        group: str = "",
        if_absent: bool = False,
        lease: Lease | None = None,
        wait: float = LATEST,
    ) -> bytes | None:
        """What the key stands for now, durably: the value, or with if_absent what was there before.

        None if the lease was lost, or its owner was purged by a process that this one had not heard of yet;
        then nothing is written. A lease that is alone means if_absent. Raises Unusable, and nothing is
        written; Unknown if the store is away, then it is written later if the store has nothing by then.
        """

    async def take(self, key: Key, *, wait: float = LATEST) -> bytes | None:
        """Reads and deletes. Of several processes one gets it. Raises StoreError."""

    async def delete(self, tag: str, group: str | None = None) -> int:
        """Everything of an owner, or of a group of it: records, leases, counters. Returns how many records.

        Leaves a tombstone with a number: what any process has queued without knowing it is refused. Raises
        StoreError.
        """

    async def claim(self, tag: str, name: str, *, ttl: float, wait: float = LATEST) -> Lease | HeldLease:
        """Never raises: a store that is away for longer than `wait` grants the lease alone."""

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        """False if it was lost. True if the store is away, because it may still be held."""

    def release(self, lease: Lease) -> None:
        """Queued. Wakes those who wait for it, in all processes."""

    async def until_free(self, held: HeldLease) -> None:
        """Returns when it is released or its time is over, or after some seconds: it may still be held."""

    async def count(self, tag: str, name: str, cost: float, most: float, window: float) -> float:
        """Counts the cost in a sliding window of so many seconds and returns 0; or counts nothing and returns
        the seconds until there is room. A cost below 0 is always counted. Raises Unknown.
        """

    async def hold(self, tag: str, name: str, member: str, most: int, ttl: float) -> bool:
        """Takes or renews one of so many places for some seconds. Raises Unknown."""

    def let_go(self, tag: str, name: str, member: str) -> None:
        """Gives the place back. Queued, and never lost while this process lives."""

    def publish(self, tag: str, text: str) -> None:
        """To all other processes, behind everything that was queued before. text: printable ASCII."""

    def subscribe(self, listener: Listener) -> None: ...


def seal(key: Key, value: bytes) -> bytes:
    """The value behind a checksum that binds it to its key."""
    return _sum(key, value) + value


def unseal(key: Key, sealed: bytes) -> bytes | None:
    """None if it is damaged, or was written for another key."""
    value = sealed[_SUM_BYTES:]
    return value if sealed[:_SUM_BYTES] == _sum(key, value) else None


_SUM_BYTES: Final = 4


def _sum(key: Key, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(" ".join(key).encode())).to_bytes(_SUM_BYTES, "big")


class SlidingWindow(NamedTuple):
    """Two counters of a sliding window: of the slot that is running, and of the one before."""

    slot: int
    used: float
    before: float

    def find_wait(self, cost: float, most: float, window: float, now: float) -> float:
        """0 if the cost has room now, otherwise the seconds until it may have.

        The slot before counts by the part of it that is still within the window:
        https://blog.cloudflare.com/counting-things-a-lot-of-different-things/
        """
        passed = now / window - self.slot
        if cost <= 0 or self.used + self.before * (1 - passed) + cost <= most:
            return 0.0
        if self.used + cost <= most:
            # The one before has to fade.
            return max(0.001, (1 - (most - self.used - cost) / self.before - passed) * window)
        if cost > most:
            return window
        # What is running becomes the one before, and has to fade then.
        # Told again then: clients do not wait for longer than their window.
        return min(window, max(0.001, (2 - (most - cost) / self.used - passed) * window))
