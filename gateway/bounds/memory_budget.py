"""The memory that all bodies under way may take together, in this process.

Small bodies are counted and never wait. A large one that does not fit waits for a while, and is then refused
with 503 and `Retry-After`. Of those that wait, the one whose tenant holds least comes first, then the oldest.
A request alone may take more than the whole budget. One that holds a part of its body may go beyond it, one
at a time: otherwise requests that hold half of their bodies would wait for one another. What it takes is
not taken from modest requests, and they pass large ones that wait.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from types import TracebackType
from typing import Final, Self

from gateway.core.errors import Overloaded

# Most requests are smaller, and a thousand of them at a time take no more than the largest body.
SMALL_BYTES: Final = 64 * 1024
# Every step of a request of 2 KB takes less.
_LEAST_BYTES: Final = 16 * 1024
# Requests whose bodies are up to a sixth of this are nearly all. They wait only for others of their kind, and
# for what large ones hold within the budget.
_MODEST_BYTES: Final = 1 << 20
# A large request is read and sent in a few seconds. Clients try a 503 again, and do not wait for a minute.
_WAIT_SECONDS: Final = 10.0
# While others wait for memory, a body that has been coming for longer is given up. Otherwise a few clients
# that send a byte a minute, with any key, would keep everybody out.
_UPLOAD_SECONDS: Final = 10.0
_CHECK_SECONDS: Final = 1.0


@dataclass(frozen=True, eq=False, slots=True)
class _Waiter:
    share: "Share"
    size_bytes: int
    granted: "asyncio.Future[None]"


@dataclass(frozen=True, slots=True)
class _Upload:
    begun_seconds: float
    give_up: Callable[[], None]


class MemoryBudget:
    def __init__(
        self,
        max_bytes: int,
        wait_seconds: float = _WAIT_SECONDS,
        upload_seconds: float = _UPLOAD_SECONDS,
    ) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._wait_seconds = wait_seconds
        # The shares that are not small.
        self._large: set[Share] = set()
        # In the order of their arrival. A dictionary of waiters is a list that forgets any quickly.
        self._waiters: dict[_Waiter, None] = {}
        # Whether they will be served in this round of the event loop. All that is given back in it is given
        # out at once: with thousands of waiters, a look at each of them costs milliseconds.
        self._will_serve = False
        # The one share that may go beyond the budget.
        self._beyond: Share | None = None
        # Bodies that are coming, the oldest first.
        self._upload_seconds = upload_seconds
        self.uploads: dict[Share, _Upload] = {}
        self._watch: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many wait for memory."""
        return len(self._waiters)

    def open(self, owner: str = "") -> "Share":
        """A share of nothing yet, for one request or one background task. Use it as a context manager.

        owner: the id of the tenant.
        """
        return Share(self, owner)

    def take_now(self, share: "Share", size_bytes: int) -> bool:
        """Takes so many bytes more if it need not wait for them."""
        may_take = share.size_bytes + size_bytes <= SMALL_BYTES or self._may_take_now(share, size_bytes)
        if may_take:
            self.take(share, size_bytes)
        return may_take

    async def wait_for(self, share: "Share", size_bytes: int) -> None:
        """Takes so many bytes more once they are free."""
        waiter = _Waiter(share, size_bytes, asyncio.get_running_loop().create_future())
        self._waiters[waiter] = None
        self._watch_uploads()
        try:
            await asyncio.wait((waiter.granted,), timeout=self._wait_seconds)
        except asyncio.CancelledError:
            if waiter.granted.done():
                self.release(share, size_bytes)
            raise
        finally:
            if not waiter.granted.done():
                del self._waiters[waiter]
                self._serve_soon()
        if not waiter.granted.done():
            raise make_refusal()

    def try_grow(self, share: "Share", size_bytes: int) -> bool:
        """See Share."""
        may_take = self._is_its_turn(share, size_bytes) and self._has_room(share, size_bytes)
        if may_take:
            self.take(share, size_bytes)
        return may_take

    def take(self, share: "Share", size_bytes: int) -> None:
        """Counts so many bytes more, whether they fit or not."""
        share.size_bytes += size_bytes
        self.used_bytes += size_bytes
        if share.size_bytes > SMALL_BYTES:
            self._large.add(share)
        if share.size_bytes > self.max_bytes and self._beyond is None:
            self._beyond = share

    def release(self, share: "Share", size_bytes: int) -> None:
        share.size_bytes -= size_bytes
        self.used_bytes -= size_bytes
        if share.size_bytes <= SMALL_BYTES:
            self._large.discard(share)
        if self._beyond not in self._large or self.used_bytes <= self.max_bytes:
            self._beyond = None
        if self._waiters:
            self._serve_soon()

    def _may_take_now(self, share: "Share", size_bytes: int) -> bool:
        if share is self._beyond:
            return True
        if self._is_its_turn(share, size_bytes) and self._has_room(share, size_bytes):
            return True
        if share in self._large and self._beyond is None:
            self._beyond = share
            return True
        return False

    def _is_its_turn(self, share: "Share", size_bytes: int) -> bool:
        """Whether it need not wait for those that wait. What has just come back is for them."""
        return not self._waiters or (_is_modest(share, size_bytes) and not self._will_serve)

    def _has_room(self, share: "Share", size_bytes: int) -> bool:
        is_alone = self._large <= {share}
        used_bytes = self.used_bytes
        if self._beyond is not None and self._beyond is not share and _is_modest(share, size_bytes):
            used_bytes -= self._beyond.size_bytes
        return is_alone or used_bytes + size_bytes <= self.max_bytes

    def _watch_uploads(self) -> None:
        if self._watch is None:
            pause = min(_CHECK_SECONDS, self._upload_seconds)
            self._watch = asyncio.get_running_loop().call_later(pause, self._end_uploads)

    def _end_uploads(self) -> None:
        """Gives up what has been coming for long, the oldest first, until there is room for all that wait.

        A body whose rest waits for memory itself is not to blame.
        """
        self._watch = None
        if not self._waiters:
            return
        missing = self.used_bytes - self.max_bytes + sum(waiter.size_bytes for waiter in self._waiters)
        waiting = {waiter.share for waiter in self._waiters}
        latest = time.monotonic() - self._upload_seconds
        for share, upload in list(self.uploads.items()):
            if missing <= 0 or upload.begun_seconds > latest:
                break
            if share in self._large and share not in waiting:
                missing -= share.size_bytes
                del self.uploads[share]
                upload.give_up()
        self._watch_uploads()

    def _serve_soon(self) -> None:
        if self._waiters and not self._will_serve:
            self._will_serve = True
            asyncio.get_running_loop().call_soon(self._serve_waiters)

    def _serve_waiters(self) -> None:
        self._will_serve = False
        self._serve_in_turn()
        if self._beyond is None:
            waiter = next((each for each in self._waiters if each.share in self._large), None)
            if waiter is not None:
                self._beyond = waiter.share
                self._serve(waiter)

    def _serve_in_turn(self) -> None:
        """The waiter whose tenant holds least comes first. Only modest ones pass it, which take little: with
        larger ones it would never be served.
        """
        queues: dict[str, deque[tuple[int, _Waiter]]] = defaultdict(deque)
        for order, waiter in enumerate(self._waiters):
            queues[waiter.share.owner].append((order, waiter))
        owned: dict[str, int] = defaultdict(int)
        for share in self._large:
            owned[share.owner] += share.size_bytes
        # What its tenant holds, when its next waiter came, and that tenant. Serving changes the first alone.
        turns = [(owned[owner], queue[0][0], owner) for owner, queue in queues.items()]
        heapify(turns)
        is_held_up = False
        while turns:
            _, _, owner = turns[0]
            queue = queues[owner]
            _, waiter = queue[0]
            is_modest = _is_modest(waiter.share, waiter.size_bytes)
            may_pass = is_modest or not is_held_up
            if may_pass and self._has_room(waiter.share, waiter.size_bytes):
                self._serve(waiter)
                owned[owner] += waiter.size_bytes
            elif is_modest:
                return
            else:
                is_held_up = True
            queue.popleft()
            if queue:
                heapreplace(turns, (owned[owner], queue[0][0], owner))
            else:
                heappop(turns)

    def _serve(self, waiter: _Waiter) -> None:
        del self._waiters[waiter]
        self.take(waiter.share, waiter.size_bytes)
        waiter.granted.set_result(None)


class Share:
    """What one request has taken of the budget. owner: the id of its tenant."""

    def __init__(self, budget: MemoryBudget, owner: str) -> None:
        self._budget = budget
        self.owner = owner
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.size_bytes:
            self._budget.release(self, self.size_bytes)

    async def grow(self, size_bytes: int) -> None:
        """Takes so many bytes more. Raises RequestRefused (503) if they do not become free in time."""
        if not self._budget.take_now(self, size_bytes):
            await self._budget.wait_for(self, size_bytes)

    async def fit(self, size_bytes: int) -> None:
        """Takes more, or gives some back, to have so many bytes. Raises RequestRefused as `grow` does.

        A small share takes a little more than it needs, and keeps it: its next step would take it again.
        """
        if size_bytes > self.size_bytes:
            await self.grow(max(size_bytes, _LEAST_BYTES) - self.size_bytes)
        elif self.size_bytes > SMALL_BYTES:
            self.shrink(self.size_bytes - size_bytes)

    async def fit_work(self, size_bytes: int, body_bytes: int) -> None:
        """The same for work on a body of `body_bytes`. For a small one it never waits, and it ends soon."""
        if body_bytes <= SMALL_BYTES and size_bytes > self.size_bytes:
            self._budget.take(self, max(size_bytes, _LEAST_BYTES) - self.size_bytes)
        else:
            await self.fit(size_bytes)

    def try_grow(self, size_bytes: int) -> bool:
        """The same as `grow` without waiting. False if they are not free."""
        return self._budget.try_grow(self, size_bytes)

    @contextmanager
    def receiving(self, give_up: Callable[[], None]) -> Iterator[None]:
        """While a body comes. give_up: called if it has been coming for long, and others wait for memory."""
        uploads = self._budget.uploads
        uploads[self] = _Upload(time.monotonic(), give_up)
        try:
            yield
        finally:
            uploads.pop(self, None)

    def take(self, size_bytes: int) -> None:
        """Takes them even if they are not free, for work that has to be done: others wait for longer then."""
        self._budget.take(self, size_bytes)

    def shrink(self, size_bytes: int) -> None:
        """Gives so many bytes back."""
        self._budget.release(self, size_bytes)


def _is_modest(share: Share, size_bytes: int) -> bool:
    """Whether a request takes little with so many bytes more."""
    return share.size_bytes + size_bytes <= _MODEST_BYTES


def make_refusal() -> Overloaded:
    return Overloaded("The gateway has no memory left for this request; try again.")
