"""The memory that all large bodies under way may take together, in this process.

Small bodies are free. A large one that does not fit waits for a while, and is then refused with 503 and
`Retry-After`. Of those that wait, the one whose tenant holds least comes first, then the oldest. One request
at a time may pass the bound: the only large one, or one that holds a part of its body already. Otherwise
requests that hold half of their bodies would wait for one another.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from types import TracebackType
from typing import Final, Self

from gateway.core.errors import Overloaded

# Most requests are smaller, and a thousand of them at a time take no more than the largest body.
SMALL_BYTES: Final = 64 * 1024
# Measured: reading a body takes up to five times its bytes while it goes on, and planning no more.
_WORK_COPIES: Final = 5
# A large request is read and sent in a few seconds. Clients try a 503 again, and do not wait for a minute.
_WAIT_SECONDS: Final = 10.0


@dataclass(frozen=True, eq=False, slots=True)
class _Waiter:
    share: "Share"
    size_bytes: int
    granted: "asyncio.Future[None]"


class MemoryBudget:
    def __init__(self, max_bytes: int, wait_seconds: float = _WAIT_SECONDS) -> None:
        self.max_bytes = max_bytes
        # Of the shares that are not small.
        self.used_bytes = 0
        self._wait_seconds = wait_seconds
        self._large: set[Share] = set()
        # What the large shares of each tenant hold.
        self._held: Counter[str] = Counter()
        # In the order of their arrival. A dictionary of waiters is a list that forgets any quickly.
        self._waiters: dict[_Waiter, None] = {}
        # Whether they will be served in this round of the event loop. All that is given back in it is given
        # out at once: with thousands of waiters, a look at each of them costs milliseconds.
        self._will_serve = False
        # The one share that may pass the bound.
        self._beyond: Share | None = None

    @property
    def waiting(self) -> int:
        """How many wait for memory."""
        return len(self._waiters)

    def open(self, owner: str = "") -> "Share":
        """A share of nothing yet, for one request or one background task. Use it as a context manager.

        owner: the id of the tenant.
        """
        return Share(self, owner)

    def may_take(self, share: "Share", size_bytes: int) -> bool:
        """Whether so many bytes more are free, and nobody waits for them."""
        return not self._waiters and self._has_room(share, size_bytes)

    def may_pass(self, share: "Share") -> bool:
        """Whether a share that holds a part of its body may go beyond the bound from now on."""
        if self._beyond is None and share in self._large:
            self._beyond = share
        return self._beyond is share

    async def wait_for(self, share: "Share", size_bytes: int) -> None:
        """Takes so many bytes more once they are free. Raises RequestRefused (503) if that takes long."""
        waiter = _Waiter(share, size_bytes, asyncio.get_running_loop().create_future())
        self._waiters[waiter] = None
        try:
            await asyncio.wait((waiter.granted,), timeout=self._wait_seconds)
        except asyncio.CancelledError:
            if waiter.granted.done():
                share.shrink(size_bytes)
            raise
        finally:
            if not waiter.granted.done():
                del self._waiters[waiter]
                self._serve_soon()
        if not waiter.granted.done():
            raise Overloaded("The gateway has no memory left for this request; try again.")

    def resize(self, share: "Share", size_bytes: int) -> None:
        """Counts a share anew, whether it fits or not."""
        change = _count(size_bytes) - _count(share.size_bytes)
        share.size_bytes = size_bytes
        if not change:
            return
        self.used_bytes += change
        self._held[share.owner] += change
        if size_bytes > SMALL_BYTES:
            self._large.add(share)
        else:
            self._large.discard(share)
        if change > 0:
            if size_bytes > self.max_bytes and self._beyond is None:
                self._beyond = share
            return
        if not self._held[share.owner]:
            del self._held[share.owner]
        if self._beyond not in self._large or self.used_bytes <= self.max_bytes:
            self._beyond = None
        self._serve_soon()

    def _has_room(self, share: "Share", size_bytes: int) -> bool:
        is_alone = self._large <= {share}
        return is_alone or share is self._beyond or self.used_bytes + size_bytes <= self.max_bytes

    def _serve_soon(self) -> None:
        if self._waiters and not self._will_serve:
            self._will_serve = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """As far as there is room for the next in turn. If others passed it, it would never be served."""
        self._will_serve = False
        is_held_up = False
        for waiter in self._take_turns():
            share = waiter.share
            has_room = not is_held_up and self._has_room(share, waiter.size_bytes)
            if has_room or self.may_pass(share):
                del self._waiters[waiter]
                self.resize(share, share.size_bytes + waiter.size_bytes)
                waiter.granted.set_result(None)
            else:
                is_held_up = True

    def _take_turns(self) -> list[_Waiter]:
        """The waiter whose tenant holds least is next, what it was given in this round included."""
        held = self._held.copy()
        turns = []
        for waiter in self._waiters:
            turns.append((held[waiter.share.owner], waiter))
            held[waiter.share.owner] += waiter.size_bytes
        return [waiter for _, waiter in sorted(turns, key=itemgetter(0))]


class Share:
    """What one request has taken of the budget. owner: the id of its tenant."""

    def __init__(self, budget: MemoryBudget, owner: str) -> None:
        self._budget = budget
        self.owner = owner
        self.size_bytes = 0
        # Of the work that is under way.
        self._work_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.size_bytes > SMALL_BYTES:
            self._budget.resize(self, 0)

    async def grow(self, size_bytes: int) -> None:
        """Takes so many bytes more. Raises RequestRefused (503) if they do not become free in time."""
        if self.size_bytes + size_bytes <= SMALL_BYTES:
            self.size_bytes += size_bytes
        elif self.try_grow(size_bytes):
            return
        elif self._budget.may_pass(self):
            self.take(size_bytes)
        else:
            await self._budget.wait_for(self, size_bytes)

    async def begin_work(self, body_bytes: int) -> None:
        """Room for all that reading and planning make of a body, until `end_work`. Raises as `grow` does."""
        if body_bytes > SMALL_BYTES:
            await self.grow(_WORK_COPIES * body_bytes)
            self._work_bytes = _WORK_COPIES * body_bytes

    def end_work(self, size_bytes: int = 0) -> None:
        """size_bytes: of what is still held; it is at least what was held before the work."""
        size_bytes = max(self.size_bytes - self._work_bytes, size_bytes)
        self._work_bytes = 0
        if size_bytes != self.size_bytes:
            self._budget.resize(self, size_bytes)

    def try_grow(self, size_bytes: int) -> bool:
        """The same as `grow` without waiting. False if they are not free."""
        is_small = self.size_bytes + size_bytes <= SMALL_BYTES
        has_room = is_small or self._budget.may_take(self, size_bytes)
        if has_room:
            self.take(size_bytes)
        return has_room

    def take(self, size_bytes: int) -> None:
        """Takes them even if they are not free, for work that has to be done: others wait for longer then."""
        self._budget.resize(self, self.size_bytes + size_bytes)

    def shrink(self, size_bytes: int) -> None:
        """Gives so many bytes back."""
        self._budget.resize(self, self.size_bytes - size_bytes)


def _count(size_bytes: int) -> int:
    return size_bytes if size_bytes > SMALL_BYTES else 0
