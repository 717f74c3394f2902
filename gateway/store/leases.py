"""Leases: which process does a piece of work. Knows nothing of the work.

A lease ends after a time unless it is renewed, so the death of its holder frees it. Each has a fence, a
number that only grows: what the holder of an earlier one writes late is refused.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from gateway.store import Store


class Lease(NamedTuple):
    """fence: larger than that of every earlier lease of the key."""

    key: str
    fence: int

    @property
    def is_of_process_alone(self) -> bool:
        """Whether it was granted because the store could not be reached."""
        return self.fence == 0


class Held(NamedTuple):
    """Another process has the lease, for so long at least."""

    key: str
    fence: int
    seconds_left: float


class Leases(Protocol):
    """The keys of one call have one tag.

    While the store cannot be reached, this process goes on alone: it is granted every lease, with the fence
    0, and what it writes under a lease is kept here until the store is back.
    """

    async def claim(self, key: str, rivals: Sequence[str], *, keep_seconds: float) -> Lease | Held:
        """The lease, unless it or one of its rivals is held; then the one that is held. Never raises."""

    async def renew(self, lease: Lease, *, keep_seconds: float) -> bool:
        """False if it was lost. True if the store cannot be reached, because it may still be held."""

    async def write(self, lease: Lease, key: str, value: bytes, *, keep_seconds: float) -> bool:
        """Durable when this returns True. False, and nothing is written, if the lease was lost.

        If the store cannot be reached, or the lease is one of a process alone: the reads of this process see
        the value from now on, and it is written later unless there is a record by then. Raises StoreError if
        the store refuses the value.
        """

    async def release(self, lease: Lease) -> None:
        """Wakes those who wait for it. Never raises, and takes no longer than one round trip may."""

    async def wait(self, held: Held) -> None:
        """Returns when it is released, or its time is over; at once if one of that has happened already.

        The holder may have renewed it meanwhile. Never raises and never polls.
        """


class LocalLeases:
    """For a store of one process. It knows its own work, so every lease is granted."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._fence = 0

    async def claim(self, key: str, rivals: Sequence[str], *, keep_seconds: float) -> Lease | Held:
        self._fence += 1
        return Lease(key, self._fence)

    async def renew(self, lease: Lease, *, keep_seconds: float) -> bool:
        return True

    async def write(self, lease: Lease, key: str, value: bytes, *, keep_seconds: float) -> bool:
        await self._store.write_durably(key, value, keep_seconds=keep_seconds)
        return True

    async def release(self, lease: Lease) -> None:
        return

    async def wait(self, held: Held) -> None:
        return
