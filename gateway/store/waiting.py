"""What can wait to be written, and what a backend answers. See `queue`."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.store.interface import Found, Key, Lease, StoreError

# Memory of what waits, beside names and value: measured with objects and dictionary slots.
_OVERHEAD_BYTES: Final = 400
# Text of the news that a lease is over. No user publishes a text with this beginning.
FREED: Final = "!freed"


@dataclass(slots=True, eq=False, kw_only=True)
class Waiting:
    """Something that is to be written.

    known: the number of the newest purge that this process knew then. promise: somebody waits for it.
    is_late: the one who asked has gone on without an answer. size_bytes: of memory, while it waits.
    """

    known: int = 0
    promise: "asyncio.Future[bytes | None] | None" = None
    is_late: bool = False
    # Set when a purge is heard of while it is on its way.
    is_purged: bool = False
    size_bytes: int = 0

    @property
    def words(self) -> Sequence[str]:
        """All of its names."""
        return ()

    @property
    def is_plain(self) -> bool:
        """Nobody waits for it, and it depends on nothing that is stored."""
        return False

    @property
    def may_be_lost(self) -> bool:
        """For want of room. Nobody was promised it; places and leases are always given back."""
        return self.promise is None and not isinstance(self, LetGo | Release)

    def measure(self) -> int:
        """Bytes of memory. Raises ValueError for names that are not printable ASCII, which must not come as
        far as the task that writes.
        """
        words = "".join(self.words)
        if not (words.isascii() and words.isprintable()):
            raise ValueError("names in a store are printable ASCII")
        return _OVERHEAD_BYTES + len(words)

    def answer(self, result: bytes | None) -> None:
        if self.promise is not None and not self.promise.done():
            self.promise.set_result(result)

    def refuse(self, error: StoreError) -> None:
        if self.promise is not None and not self.promise.done():
            self.promise.set_exception(error)


@dataclass(slots=True, eq=False, kw_only=True)
class Put(Waiting):
    """The backend answers what the key stands for now; None if the lease was lost or a purge refuses it.

    What is late is written only if nothing is there, and without its lease: see `wants_absent` and
    `wants_lease`. A backend that works in another thread looks at both inside its transaction.
    """

    key: Key
    value: bytes
    ttl: float
    group: str = ""
    if_absent: bool = False
    lease: Lease | None = None

    @property
    def wants_absent(self) -> bool:
        return self.is_late or self.if_absent or (self.lease is not None and self.lease.is_alone)

    @property
    def wants_lease(self) -> Lease | None:
        """Must still be held."""
        is_free = self.is_late or self.lease is None or self.lease.is_alone
        return None if is_free else self.lease

    @property
    def is_plain(self) -> bool:
        return not self.wants_absent and self.lease is None and self.promise is None

    @property
    def words(self) -> Sequence[str]:
        return (*self.key, self.group)

    def measure(self) -> int:
        # `super()` finds no class in one with slots, which is made anew.
        return Waiting.measure(self) + len(self.value)


@dataclass(slots=True, eq=False, kw_only=True)
class Drop(Waiting):
    key: Key

    @property
    def is_plain(self) -> bool:
        return True

    @property
    def words(self) -> Sequence[str]:
        return self.key


@dataclass(slots=True, eq=False, kw_only=True)
class Take(Waiting):
    """The backend answers the value and deletes it. One that is late takes nothing.

    taken: what it has taken, to be put back if the one who asked has gone on meanwhile. None if the backend
    does not say.
    """

    key: Key
    taken: Put | None = None

    @property
    def words(self) -> Sequence[str]:
        return self.key


@dataclass(slots=True, eq=False, kw_only=True)
class Release(Waiting):
    """If the fence is still the lease's, the backend ends it and publishes `news` to other processes."""

    lease: Lease

    @property
    def news(self) -> str:
        return f"{FREED} {self.lease.fence} {self.lease.name}"


@dataclass(slots=True, eq=False, kw_only=True)
class LetGo(Waiting):
    tag: str
    name: str
    member: str

    @property
    def words(self) -> Sequence[str]:
        return self.tag, self.name, self.member


@dataclass(slots=True, eq=False, kw_only=True)
class News(Waiting):
    """For all other processes."""

    tag: str
    text: str

    @property
    def words(self) -> Sequence[str]:
        return self.tag, self.text


class Overlay(NamedTuple):
    """What waits for a key. is_sure: it counts, whatever the store holds. Otherwise the store comes first."""

    value: bytes | None
    group: str
    is_sure: bool


def find_overlay(waits: Sequence[Waiting]) -> Overlay:
    """waits: what waits for one key, oldest first."""
    overlay = Overlay(None, "", is_sure=False)
    for waiting in waits:
        match waiting:
            case Put(wants_absent=True):
                if overlay.value is None:
                    overlay = Overlay(waiting.value, waiting.group, overlay.is_sure)
            case Put(wants_lease=None):
                overlay = Overlay(waiting.value, waiting.group, is_sure=True)
            case Drop() | Take(is_late=False):
                overlay = Overlay(None, "", is_sure=True)
    return overlay


def choose_first(names: Sequence[str], stored: Found, waiting: Found | None) -> Found:
    """For the same name what is stored counts: what waits is for a name that has nothing."""
    if waiting is not None and names.index(waiting.name) < names.index(stored.name):
        return waiting
    return stored


class NumberedPurge(NamedTuple):
    """A tombstone. number: larger than that of every earlier one. group: None for all of the tag."""

    number: int
    tag: str
    group: str | None


class Written(NamedTuple):
    """results: one for each of the batch, None where there is nothing to answer. purges: that the process may
    not know, in the order of their numbers.
    """

    results: Sequence[bytes | None]
    purges: Sequence[NumberedPurge] = ()


class Deleted(NamedTuple):
    """purges: all that the process may not know, and the one that this made."""

    records: int
    purges: Sequence[NumberedPurge]
