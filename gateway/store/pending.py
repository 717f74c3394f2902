"""Operations that are not on disk yet: the newest of each key, in the order of their arrival.

The event loop puts them, the reader thread looks them up, and the writer thread takes them. Every method
holds the lock for microseconds only. While the disk cannot be written, this is the store: it is
bounded, and the oldest operations are dropped first.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from gateway.store.errors import StoreError, Unusable

# Memory beside key and value: dictionary slot, two object headers, the operation.
_OVERHEAD_BYTES = 300


@dataclass(frozen=True, slots=True)
class Op:
    """value: None deletes. waiters: futures that wait for the commit of this operation, or of one that it
    replaced.
    """

    value: bytes | None
    expires_at: float = 0.0
    waiters: tuple["Future[None]", ...] = ()

    def read(self, now: float) -> bytes | None:
        return self.value if self.expires_at > now else None


def _cost_bytes(key: str, op: Op | None) -> int:
    return 0 if op is None else len(key) + len(op.value or b"") + _OVERHEAD_BYTES


class Pending:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Condition()
        self._queued: OrderedDict[str, Op] = OrderedDict()
        self._taken: dict[str, Op] = {}
        # The keys of queued operations that a caller waits for.
        self._awaited: set[str] = set()
        self._used_bytes = 0
        self._is_urgent = False
        self._is_stuck = False
        self.is_closed = False

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def put(self, key: str, op: Op) -> bool:
        """False if there is no room. Deletes always find room; they take almost none.

        A replaced operation moves to the end, so operations reach the disk in the order of their arrival.
        """
        with self._lock:
            if self.is_closed:
                return False
            if op.value is not None and not self._make_room(key, op):
                return False
            old = self._drop(key)
            if old is not None and old.waiters:
                op = replace(op, waiters=old.waiters + op.waiters)
            self._add(key, op)
            if op.waiters:
                self._notify()
        return True

    def wake(self) -> None:
        with self._lock:
            self._notify()

    def close(self) -> None:
        """Takes no more operations. The writer still takes what is left."""
        with self._lock:
            self.is_closed = True
            self._notify()

    def wait(self, seconds: float) -> None:
        """Returns when a durable write or `wake` asks for it, or when the time is over."""
        with self._lock:
            self._lock.wait_for(lambda: self._is_urgent, seconds)
            self._is_urgent = False

    def find(self, keys: Iterable[str]) -> dict[str, Op]:
        with self._lock:
            if not self._queued and not self._taken:
                return {}
            found = ((key, self._queued.get(key) or self._taken.get(key)) for key in keys)
            return {key: op for key, op in found if op is not None}

    def find_prefix(self, prefix: str) -> dict[str, Op]:
        with self._lock:
            both = {**self._taken, **self._queued}
        return {key: op for key, op in both.items() if key.startswith(prefix)}

    def take(self, max_ops: int, max_bytes: int) -> dict[str, Op]:
        """The oldest operations. They stay visible until `settle` or `return_taken`."""
        with self._lock:
            taken_bytes = 0
            for key, op in self._queued.items():
                if len(self._taken) >= max_ops or taken_bytes >= max_bytes:
                    break
                self._taken[key] = op
                taken_bytes += _cost_bytes(key, op)
            for key in self._taken:
                del self._queued[key]
            self._awaited.difference_update(self._taken)
            return dict(self._taken)

    def settle(self) -> None:
        """The taken operations are committed."""
        with self._lock:
            done, self._taken = self._taken, {}
            self._used_bytes -= sum(_cost_bytes(key, op) for key, op in done.items())
            self._is_stuck = False
        for op in done.values():
            _resolve(op.waiters, None)

    def return_taken(self, error: StoreError) -> None:
        """The taken operations could not be committed: queues them again, and gives all waiters the error.

        Takes time for these and for the waiters alone: the event loop waits for the lock meanwhile, and a
        disk that stays full is tried again and again.
        """
        with self._lock:
            waiters = [waiter for op in self._taken.values() for waiter in op.waiters]
            for key, op in reversed(self._taken.items()):
                if key in self._queued:
                    self._used_bytes -= _cost_bytes(key, op)
                    continue
                self._queued[key] = replace(op, waiters=()) if op.waiters else op
                self._queued.move_to_end(key, last=False)
            for key in self._awaited:
                waiters += self._queued[key].waiters
                self._queued[key] = replace(self._queued[key], waiters=())
            self._awaited.clear()
            self._taken = {}
            self._is_stuck = True
        _resolve(waiters, error)

    def end(self) -> int:
        """After the last `take`. Returns the number of operations that never reached the disk."""
        self.close()
        self.return_taken(Unusable("the store is closed"))
        with self._lock:
            lost, self._queued = len(self._queued), OrderedDict()
        return lost

    def _make_room(self, key: str, op: Op) -> bool:
        """While the disk cannot be written, the oldest operations make room for the newest."""
        room_bytes = self._max_bytes - _cost_bytes(key, op) + _cost_bytes(key, self._queued.get(key))
        while self._is_stuck and self._used_bytes > room_bytes:
            free = (other for other, old in self._queued.items() if other != key and not old.waiters)
            oldest = next(free, None)
            if oldest is None:
                break
            self._drop(oldest)
        return self._used_bytes <= room_bytes

    def _add(self, key: str, op: Op) -> None:
        self._queued[key] = op
        self._used_bytes += _cost_bytes(key, op)
        if op.waiters:
            self._awaited.add(key)

    def _drop(self, key: str) -> Op | None:
        old = self._queued.pop(key, None)
        self._awaited.discard(key)
        self._used_bytes -= _cost_bytes(key, old)
        return old

    def _notify(self) -> None:
        self._is_urgent = True
        self._lock.notify_all()


def _resolve(waiters: Iterable["Future[None]"], error: StoreError | None) -> None:
    for waiter in waiters:
        # False if the waiting call was cancelled meanwhile.
        if not waiter.set_running_or_notify_cancel():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
