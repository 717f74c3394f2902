"""The one thread that writes: it opens the volume, commits pending operations in batches, and removes
what has expired.

It alone replaces a damaged volume; the reader thread only reports one.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

from gateway.store.errors import Damaged, Locked, StoreError, Unusable, mapped_errors
from gateway.store.ownership import ShareLock, is_open_to_all, remove_set_aside
from gateway.store.pending import Op, Pending
from gateway.store.volume import Volume, only_process, open_volume, quarantine

_log = logging.getLogger(__name__)

# One transaction is large enough for its sync to cost little per record, and small enough for other
# processes to get their turn.
_BATCH_OPS = 512
_BATCH_BYTES = 8 << 20
# While the disk cannot be written, it is tried again this often, and with every durable write.
_RETRY_SECONDS = 5.0
# The log names trouble with the disk this often at most.
_QUIET_SECONDS = 600.0
_EXPIRE_EVERY_SECONDS = 60.0
# A pause between two pieces of a long expiry lets durable writes and other processes get their turn.
_EXPIRE_PAUSE_SECONDS = 0.05
# Once for the open volume, once for a fresh one, once more if another process moved that meanwhile.
_TRIES = 3
# More damage than this means a broken disk, which would be filled with directories.
_MAX_QUARANTINES = 10


class Writer:
    """`volume` is read by other threads. It is the volume in use, or None."""

    def __init__(
        self,
        directory: Path,
        pending: Pending,
        *,
        linger_seconds: float,
        clock: Callable[[], float],
        lock_seconds: float,
        max_bytes: int | None,
    ) -> None:
        self.volume: Volume | None = None
        self._directory = directory
        self._pending = pending
        self._linger_seconds = linger_seconds
        self._clock = clock
        self._lock_seconds = lock_seconds
        self._max_bytes = max_bytes
        self._has_grown = True
        self._suspect: Volume | None = None
        self._error: StoreError | None = None
        self._quiet_until = 0.0
        self._is_recovery_news = False
        # Why the volume could not be opened at the start.
        self._refusal: StoreError | None = None
        self._share_lock = ShareLock(directory)
        self._expire_at = 0.0
        self._quarantines = 0
        self._scrubs: SimpleQueue[Future[None]] = SimpleQueue()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def start(self) -> None:
        """Returns once the volume is open. Raises StoreError if it cannot be opened now and at this place; a
        volume that another process locks is opened later.
        """
        self._thread.start()
        self._is_ready.wait()
        if self._refusal is not None:
            raise self._refusal

    def scrub(self) -> "Future[None]":
        """Done when no byte of what was deleted before is left in the directory. It may take a StoreError."""
        scrubbed: Future[None] = Future()
        self._scrubs.put(scrubbed)
        self._pending.wake()
        return scrubbed

    def join(self) -> None:
        self._thread.join()

    def report(self, volume: Volume) -> None:
        """The reader found that this volume is damaged or was moved."""
        self._suspect = volume
        self._pending.wake()

    def _run(self) -> None:
        try:
            self._begin()
            self._is_ready.set()
            if self._refusal is None:
                self._work()
        finally:
            self._is_ready.set()
            self._drop_volume()
            self._share_lock.release()
            self._refuse_scrubs(Unusable("the store is closed"))
            lost = self._pending.end()
            if lost:
                _log.error("store %s: %d operations could not be written", self._directory, lost)

    def _begin(self) -> None:
        try:
            self._open()
            if is_open_to_all(self._directory):
                _log.warning(
                    "store %s belongs to another user and can be written by all: chown it to user %d",
                    self._directory,
                    os.geteuid(),
                )
        except Locked as error:
            self._note_trouble(error)
        except StoreError as error:
            self._refusal = error

    def _work(self) -> None:
        pause_seconds = self._linger_seconds
        while not self._pending.is_closed:
            self._pending.wait(pause_seconds)
            pause_seconds = self._work_once()
        self._flush()

    def _work_once(self) -> float:
        """Returns the seconds until the next round."""
        self._check_volume()
        if not self._flush() or self.volume is None:
            self._refuse_scrubs(self._error or Unusable("the store cannot be written"))
            return _RETRY_SECONDS
        self._note_recovery()
        self._answer_scrubs(self.volume)
        has_more = self._expire() | self._trim()
        return _EXPIRE_PAUSE_SECONDS if has_more else self._linger_seconds

    def _answer_scrubs(self, volume: Volume) -> None:
        while not self._scrubs.empty():
            scrubbed = self._scrubs.get()
            try:
                volume.scrub()
                with mapped_errors():
                    removed = remove_set_aside(self._directory)
            except StoreError as error:
                scrubbed.set_exception(error)
                continue
            for path in removed:
                _log.info("store %s: deleted %s, which was set aside as damaged", self._directory, path)
            scrubbed.set_result(None)

    def _refuse_scrubs(self, error: StoreError) -> None:
        while not self._scrubs.empty():
            self._scrubs.get().set_exception(error)

    def _check_volume(self) -> None:
        """Opens a volume if none is open, and replaces one that the reader reported."""
        suspect, self._suspect = self._suspect, None
        try:
            if suspect is not None and suspect is self.volume:
                self._replace(suspect, Damaged("found while reading"))
            self._open()
        except StoreError as error:
            self._note_trouble(error)

    def _flush(self) -> bool:
        """False if something could not be written."""
        while batch := self._pending.take(_BATCH_OPS, _BATCH_BYTES):
            try:
                self._write(batch)
            except StoreError as error:
                self._pending.return_taken(error)
                self._note_trouble(error)
                return False
            self._pending.settle()
        return True

    def _write(self, batch: Mapping[str, Op]) -> None:
        for _ in range(_TRIES):
            volume = self._open()
            try:
                volume.write(batch)
            except Damaged as error:
                self._replace(volume, error)
                continue
            # Only now is it certain that no other process moved the directory before the commit.
            if volume.is_current():
                self._has_grown = True
                return
            self._drop_volume()
        raise Unusable("damaged or moved several times in a row")

    def _expire(self) -> bool:
        """Removes expired records once a minute. True if there may be more."""
        now = self._clock()
        if self.volume is None or now < self._expire_at:
            return False
        self._expire_at = now + _EXPIRE_EVERY_SECONDS
        try:
            has_more = self.volume.expire_some(now)
        except Damaged:
            self.report(self.volume)
            return False
        except StoreError as error:
            _log.warning("store %s: expired records cannot be removed now (%s)", self._directory, error)
            return False
        if has_more:
            self._expire_at = now
        return has_more

    def _trim(self) -> bool:
        """After a write, removes the oldest records if the store is too large. True if there may be more."""
        has_grown, self._has_grown = self._has_grown, False
        if self.volume is None or not has_grown:
            return False
        try:
            self._has_grown = self.volume.trim_some()
        except Damaged:
            self.report(self.volume)
        except StoreError as error:
            _log.warning("store %s: the oldest records cannot be removed now (%s)", self._directory, error)
        return self._has_grown

    def _open(self) -> Volume:
        if self.volume is None:
            try:
                # Another process may be moving the directory away at this moment.
                with only_process(self._directory):
                    self.volume = self._open_volume()
            except Damaged as error:
                self.volume = self._open_afresh(None, error)
            if not self._share_lock.take():
                _log.warning(
                    "store %s is also used by another gateway: give each a folder of its own (store: "
                    '"disk:PATH"), or both summarize the same conversations',
                    self._directory,
                )
        return self.volume

    def _open_volume(self) -> Volume:
        return open_volume(self._directory, lock_seconds=self._lock_seconds, max_bytes=self._max_bytes)

    def _replace(self, volume: Volume, error: Damaged) -> None:
        self._drop_volume()
        self.volume = self._open_afresh(volume, error)

    def _open_afresh(self, damaged: Volume | None, error: Damaged) -> Volume:
        """If another process has already replaced the volume, opens that one; otherwise moves the damaged
        directory away and begins with an empty one.
        """
        with only_process(self._directory):
            if damaged is None or not damaged.is_current():
                try:
                    return self._open_volume()
                except Damaged as other:
                    error = other
            self._quarantines += 1
            if self._quarantines > _MAX_QUARANTINES:
                raise Unusable(f"damaged {self._quarantines} times, {error}")
            place = quarantine(self._directory)
            _log.error(
                "store %s is damaged (%s): moved to %s, starting with an empty store",
                self._directory,
                error,
                place,
            )
            return self._open_volume()

    def _drop_volume(self) -> None:
        volume, self.volume = self.volume, None
        if volume is not None:
            volume.close()

    def _note_trouble(self, error: StoreError) -> None:
        """Logged once, until the store can be written again; and not each time if that comes and goes, as on
        a full disk that still has room for small records.
        """
        now = self._clock()
        if self._error is None and now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            self._is_recovery_news = True
            _log_trouble(self._directory, error)
        self._error = error

    def _note_recovery(self) -> None:
        if self._error is not None and self._is_recovery_news:
            self._is_recovery_news = False
            _log.info("store %s can be written again", self._directory)
        self._error = None


def _log_trouble(directory: Path, error: StoreError) -> None:
    if isinstance(error, Locked):
        _log.warning(
            "store %s is locked by another process: writes wait in memory; give each gateway a folder of "
            'its own (store: "disk:PATH")',
            directory,
        )
    else:
        _log.error("store %s cannot be written (%s): records are kept in memory", directory, error)
