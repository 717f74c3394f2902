"""The memory that all bodies under way may take together, in this process.

A request whose body does not fit waits for a while, and is then refused with 503 and `Retry-After`.
"""

from types import TracebackType
from typing import Final, Self

from gateway.core.errors import RequestRefused

_RETRY_SECONDS: Final = 1


class MemoryBudget:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0

    def open(self) -> "Share":
        """A share of nothing yet, for one request. Use it as a context manager."""
        return Share(self)


class Share:
    """What one request has taken of the budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shrink(self.size_bytes)

    async def grow(self, size_bytes: int) -> None:
        """Takes so many bytes more. Raises RequestRefused (503) if they do not become free in time."""
        budget = self._budget
        if budget.used_bytes + size_bytes > budget.max_bytes:
            raise RequestRefused(
                503,
                "The gateway has no memory left for this request; try again.",
                kind="server_error",
                retry_after_seconds=_RETRY_SECONDS,
            )
        budget.used_bytes += size_bytes
        self.size_bytes += size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Gives so many bytes back."""
        self._budget.used_bytes -= size_bytes
        self.size_bytes -= size_bytes
