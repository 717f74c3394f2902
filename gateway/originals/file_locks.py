"""Locks of files that several threads and processes use, and may delete.

SQLite's own locks belong to a file and end with it: a process that has a deleted file open would disturb the
one that has made a new file under the same name. These locks belong to the name.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# Names share the files, which stay, so that their number has a bound.
_FILES: Final = 64
# A batch of messages is added in some 100 ms. What waits longer meets a stuck process.
LOCK_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.002


class LockHeld(OSError):
    """Another process holds the lock for too long."""


class FileLocks:
    """directory: of the lock files; it exists. Used in threads, because taking a lock waits."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def shared(self, name: str) -> Iterator[None]:
        """For reading. Raises LockHeld, or OSError if the lock files cannot be used."""
        with self._held(name, fcntl.LOCK_SH, LOCK_SECONDS):
            yield

    @contextmanager
    def exclusive(self, name: str, longest_seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """For writing and deleting. longest_seconds: to wait. Raises as `shared` does."""
        with self._held(name, fcntl.LOCK_EX, longest_seconds):
            yield

    @contextmanager
    def _held(self, name: str, kind: int, longest_seconds: float) -> Iterator[None]:
        number = hashlib.sha256(name.encode()).digest()[0] % _FILES
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._directory / f"{number:02}.lock", flags, 0o600)
        try:
            _wait(descriptor, kind, longest_seconds)
            yield
        finally:
            os.close(descriptor)


def _wait(descriptor: int, kind: int, longest_seconds: float) -> None:
    ends_at = time.monotonic() + longest_seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= ends_at:
                raise LockHeld("another process holds the lock of a search index") from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return
