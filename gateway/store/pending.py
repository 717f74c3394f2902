"""What was written but is not on disk yet: one operation per key, the newest, in the order of their arrival.

Shared by the event loop (puts), the reader thread (looks) and the writer thread (takes); every method holds
the lock for microseconds only. While the disk refuses to be written, this is the store: bounded, and the
oldest goes first.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from gateway.store.fault import StoreError, Unusable

# What Python keeps beside key and value: dict slot, two object headers, the operation.
_OVERHEAD_BYTES = 300


@dataclass(frozen=True, slots=True)
class Op:
    """value: None deletes. waiters: who waits for the commit of this or of an operation it replaced."""

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
        self._used_bytes = 0
        self._is_urgent = False
        self._is_stuck = False
        self.is_closed = False

    def put(self, key: str, op: Op) -> bool:
        """False if there is no room. Deletes always find room, they cost next to nothing.

        A replaced operation moves to the end: what came before it in time also reaches the disk before it.
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
                self._hurry()
        return True

    def wake(self) -> None:
        with self._lock:
            self._hurry()

    def close(self) -> None:
        """No more puts; the writer takes what is left."""
        with self._lock:
            self.is_closed = True
            self._hurry()

    def wait(self, seconds: float) -> None:
        """Until somebody is in a hurry, or the time is over."""
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
        """The oldest operations; they stay visible until `settle` or `give_back`."""
        with self._lock:
            taken_bytes = 0
            for key, op in self._queued.items():
                if len(self._taken) >= max_ops or taken_bytes >= max_bytes:
                    break
                self._taken[key] = op
                taken_bytes += _cost_bytes(key, op)
            for key in self._taken:
                del self._queued[key]
            return dict(self._taken)

    def settle(self) -> None:
        """What was taken is committed."""
        with self._lock:
            done, self._taken = self._taken, {}
            self._used_bytes -= sum(_cost_bytes(key, op) for key, op in done.items())
            self._is_stuck = False
        for op in done.values():
            _answer(op.waiters, None)

    def give_back(self, fault: StoreError) -> None:
        """Nothing could be committed: all of it waits for better times, and whoever waits for it is told."""
        with self._lock:
            older = [item for item in self._taken.items() if item[0] not in self._queued]
            ops = [*self._taken.values(), *self._queued.values()]
            waiters = [waiter for op in ops for waiter in op.waiters]
            both = [*older, *self._queued.items()]
            self._taken = {}
            self._queued = OrderedDict((key, replace(op, waiters=())) for key, op in both)
            self._used_bytes = sum(_cost_bytes(key, op) for key, op in both)
            self._is_stuck = True
        _answer(waiters, fault)

    def end(self) -> int:
        """Nobody takes any more. The number of operations that never reached the disk."""
        self.close()
        self.give_back(Unusable("the store is closed"))
        with self._lock:
            lost, self._queued = len(self._queued), OrderedDict()
        return lost

    def _make_room(self, key: str, op: Op) -> bool:
        """Only where the disk refuses to be written: the oldest make room for the newest."""
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

    def _drop(self, key: str) -> Op | None:
        old = self._queued.pop(key, None)
        self._used_bytes -= _cost_bytes(key, old)
        return old

    def _hurry(self) -> None:
        self._is_urgent = True
        self._lock.notify_all()


def _answer(waiters: Iterable["Future[None]"], fault: StoreError | None) -> None:
    for waiter in waiters:
        # False: whoever waited was cancelled meanwhile.
        if not waiter.set_running_or_notify_cancel():
            continue
        if fault is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(fault)
