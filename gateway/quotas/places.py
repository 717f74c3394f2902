"""Places for things that go on at the same time: each is held until it is given back, or for a short time
unless it is renewed, so that the death of a process frees its places.

Does not know what goes on.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

# A place that is not renewed is free after this time, and each is renewed three times within it.
KEEP_SECONDS: Final = 15.0
RENEW_SECONDS: Final = 5.0


class QuotaPlaces(Protocol):
    """Members are ids, unique over all processes. Each raises StoreError if the places cannot be reached."""

    async def take(self, key: str, member: str, most: int) -> bool:
        """False if `most` places are held already."""

    async def renew(self, members: Mapping[str, Sequence[str]]) -> None:
        """Those of each key. A place that was lost is held again, whether there is room or not."""

    async def give_back(self, members: Mapping[str, Sequence[str]]) -> None: ...


class LocalPlaces:
    """In the memory of one process.

    keep_seconds: None if everything that takes a place gives it back. clock: seconds that never go back.
    """

    def __init__(
        self, keep_seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep_seconds = keep_seconds
        self._clock = clock
        # Until when each member holds its place, by key.
        self._held: dict[str, dict[str, float]] = {}

    @property
    def members(self) -> Mapping[str, Sequence[str]]:
        """What is held, by key."""
        return {key: list(held) for key, held in self._held.items()}

    async def take(self, key: str, member: str, most: int) -> bool:
        self._drop_expired(key)
        if len(self._held.get(key, ())) >= most:
            return False
        self.hold(key, member)
        return True

    def hold(self, key: str, member: str) -> None:
        """Takes a place, whether there is room or not."""
        ends = self._clock() + self._keep_seconds if self._keep_seconds is not None else math.inf
        self._held.setdefault(key, {})[member] = ends

    async def renew(self, members: Mapping[str, Sequence[str]]) -> None:
        for key, found in members.items():
            for member in found:
                self.hold(key, member)

    async def give_back(self, members: Mapping[str, Sequence[str]]) -> None:
        for key, found in members.items():
            for member in found:
                self.drop(key, member)

    def drop(self, key: str, member: str) -> None:
        held = self._held.get(key, {})
        held.pop(member, None)
        if not held:
            self._held.pop(key, None)

    def _drop_expired(self, key: str) -> None:
        now = self._clock()
        for member in [member for member, ends in self._held.get(key, {}).items() if ends <= now]:
            self.drop(key, member)
