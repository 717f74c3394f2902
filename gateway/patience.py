"""How long one request may wait for summaries, and for how many."""

import asyncio
import time
from dataclasses import dataclass

from gateway.compaction.job import Compaction


@dataclass(slots=True)
class Patience:
    """calls: how many may still be made for one request. ends: by the monotonic clock. has_folded: some were
    made, and came to something.
    """

    calls: int
    ends: float
    has_folded: bool = False

    def spend(self, task: "asyncio.Task[Compaction]") -> None:
        """None are left after a compaction that failed, or that nobody waits for any longer."""
        is_over = not task.done() or task.cancelled() or task.exception() is not None
        made = None if is_over or time.monotonic() >= self.ends else task.result()
        is_ready = made is not None and made.is_ready
        self.has_folded = self.has_folded or is_ready
        self.calls = max(0, self.calls - made.calls) if made is not None and is_ready else 0
