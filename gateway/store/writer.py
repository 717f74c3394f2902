"""The one thread that writes: opens the volume, commits what is pending in batches, removes what has expired.

Also the only one to replace a damaged volume; the reader thread reports, this one acts.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.store.fault import Damaged, Locked, StoreError, Unusable
from gateway.store.pending import Op, Pending
from gateway.store.volume import Volume, only_process, open_volume, set_aside

_log = logging.getLogger(__name__)

# One transaction: large enough for its sync to cost little per record, small enough for others to get in.
_BATCH_OPS = 512
_BATCH_BYTES = 8 << 20
# While the disk refuses to be written, it is asked again this often (and by every durable write).
_RETRY_SECONDS = 5.0
_EXPIRE_EVERY_SECONDS = 60.0
# Between two pieces of a long expiry, so that durable writes and other processes get their turn.
_EXPIRE_PAUSE_SECONDS = 0.05
# Once for the volume in hand, once for a fresh one, once more if another process moved that meanwhile.
_TRIES = 3
# A process that sees more damage than this looks at a broken disk, and would fill it with directories.
_MAX_ASIDES = 10


class Writer:
    """`volume` is read by other threads: the directory now in use, None where there is none."""

    def __init__(
        self,
        directory: Path,
        pending: Pending,
        *,
        linger_seconds: float,
        clock: Callable[[], float],
        max_bytes: int | None = None,
    ) -> None:
        self.volume: Volume | None = None
        self._directory = directory
        self._pending = pending
        self._linger_seconds = linger_seconds
        self._clock = clock
        self._max_bytes = max_bytes
        self._has_grown = True
        self._suspect: Volume | None = None
        self._fault: StoreError | None = None
        self._expire_at = 0.0
        self._asides = 0
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def start(self) -> None:
        """Returns once the volume is open, or known not to be."""
        self._thread.start()
        self._is_ready.wait()

    def join(self) -> None:
        self._thread.join()

    def report(self, volume: Volume) -> None:
        """The reader found this volume damaged or moved."""
        self._suspect = volume
        self._pending.wake()

    def _run(self) -> None:
        try:
            self._look_after_volume()
            self._is_ready.set()
            self._work()
        finally:
            self._is_ready.set()
            self._drop_volume()
            lost = self._pending.end()
            if lost:
                _log.error("store %s: %d operations could not be written", self._directory, lost)

    def _work(self) -> None:
        pause_seconds = self._linger_seconds
        while not self._pending.is_closed:
            self._pending.wait(pause_seconds)
            pause_seconds = self._work_once()
        self._flush()

    def _work_once(self) -> float:
        """Seconds until there is something to do again."""
        self._look_after_volume()
        if not self._flush() or self.volume is None:
            return _RETRY_SECONDS
        self._leave()
        has_more = self._expire() | self._trim()
        return _EXPIRE_PAUSE_SECONDS if has_more else self._linger_seconds

    def _look_after_volume(self) -> None:
        """Opens what is not open, replaces what the reader complained of."""
        suspect, self._suspect = self._suspect, None
        try:
            if suspect is not None and suspect is self.volume:
                self._replace(suspect, Damaged("found while reading"))
            self._open()
        except StoreError as fault:
            self._enter(fault)

    def _flush(self) -> bool:
        """False if something is left."""
        while batch := self._pending.take(_BATCH_OPS, _BATCH_BYTES):
            try:
                self._write(batch)
            except StoreError as fault:
                self._pending.give_back(fault)
                self._enter(fault)
                return False
            self._pending.settle()
        return True

    def _write(self, batch: Mapping[str, Op]) -> None:
        for _ in range(_TRIES):
            volume = self._open()
            try:
                volume.write(batch)
            except Damaged as fault:
                self._replace(volume, fault)
                continue
            # Only now is it certain that no other process set the directory aside before the commit.
            if volume.is_current():
                self._has_grown = True
                return
            self._drop_volume()
        raise Unusable("damaged or moved again and again")

    def _expire(self) -> bool:
        """True if there is more to remove."""
        now = self._clock()
        if self.volume is None or now < self._expire_at:
            return False
        self._expire_at = now + _EXPIRE_EVERY_SECONDS
        try:
            has_more = self.volume.expire_some(now)
        except Damaged:
            self.report(self.volume)
            return False
        except StoreError as fault:
            _log.warning("store %s: expired records stay for now (%s)", self._directory, fault)
            return False
        if has_more:
            self._expire_at = now
        return has_more

    def _trim(self) -> bool:
        """The same for what is too much, after something was written."""
        has_grown, self._has_grown = self._has_grown, False
        if self.volume is None or not has_grown:
            return False
        try:
            self._has_grown = self.volume.trim_some()
        except Damaged:
            self.report(self.volume)
        except StoreError as fault:
            _log.warning("store %s: the oldest records stay for now (%s)", self._directory, fault)
        return self._has_grown

    def _open(self) -> Volume:
        if self.volume is None:
            try:
                self.volume = open_volume(self._directory, self._max_bytes)
            except Damaged as fault:
                self.volume = self._open_afresh(None, fault)
        return self.volume

    def _replace(self, volume: Volume, fault: Damaged) -> None:
        self._drop_volume()
        self.volume = self._open_afresh(volume, fault)

    def _open_afresh(self, damaged: Volume | None, fault: Damaged) -> Volume:
        """Cases: another process has already replaced it · it really is damaged: set aside, new one."""
        with only_process(self._directory):
            if damaged is None or not damaged.is_current():
                try:
                    return open_volume(self._directory, self._max_bytes)
                except Damaged as still:
                    fault = still
            self._asides += 1
            if self._asides > _MAX_ASIDES:
                raise Unusable(f"damaged {self._asides} times, {fault}")
            aside = set_aside(self._directory)
            _log.error(
                "store %s is damaged (%s): set aside as %s, a new one begins", self._directory, fault, aside
            )
            return open_volume(self._directory, self._max_bytes)

    def _drop_volume(self) -> None:
        volume, self.volume = self.volume, None
        if volume is not None:
            volume.close()

    def _enter(self, fault: StoreError) -> None:
        """The disk refuses; said once, until it works again."""
        if self._fault is None and isinstance(fault, Locked):
            _log.warning("store %s is locked by another process: writes wait in memory", self._directory)
        elif self._fault is None:
            _log.error("store %s cannot be written (%s): going on in memory", self._directory, fault)
        self._fault = fault

    def _leave(self) -> None:
        if self._fault is not None:
            _log.info("store %s can be written again", self._directory)
        self._fault = None
