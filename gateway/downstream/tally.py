"""How many connections each worker has, in memory that all workers of a gateway share.

A worker writes its own number and reads those of the others, so that a new connection goes to the one that
has fewest. A number that is a moment old does no harm.
"""

import mmap
import os
import tempfile
from typing import Final, Self

# A worker that takes no connections: it is not ready yet, or it has ended.
_ABSENT: Final = 0xFFFF_FFFF
_ITEM_BYTES: Final = 4


class Tally:
    """workers: counted from 0."""

    def __init__(self, descriptor: int) -> None:
        """descriptor: of `create`, perhaps inherited from another process. It belongs to this tally."""
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        # A number is written and read in one piece.
        self._counts = memoryview(self._memory).cast("I")

    @classmethod
    def create(cls, workers: int) -> Self:
        """With no worker present."""
        with tempfile.TemporaryFile() as file:
            file.write(_ABSENT.to_bytes(_ITEM_BYTES, "little") * workers)
            file.flush()
            return cls(os.dup(file.fileno()))

    def write(self, worker: int, connections: int) -> None:
        self._counts[worker] = connections

    def leave(self, worker: int) -> None:
        """This worker takes no connections any more."""
        self._counts[worker] = _ABSENT

    def has_least(self, worker: int) -> bool:
        """Whether no other worker has fewer connections."""
        return self._counts[worker] <= min(self._counts)

    def close(self) -> None:
        self._counts.release()
        self._memory.close()
        os.close(self.descriptor)
