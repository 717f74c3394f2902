"""When to stop calling a summary model that keeps failing. Values only; the caller has the clock."""

from dataclasses import dataclass
from typing import Final

# After three failures in a row the breaker opens; once the time is over, single attempts are allowed.
_MAX_FAILURES: Final = 3
_OPEN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Breaker:
    failures: int = 0
    retry_at_seconds: float = 0.0

    def allows(self, now_seconds: float) -> bool:
        """Whether it is closed, or has been open for long enough to try again."""
        return self.failures < _MAX_FAILURES or now_seconds >= self.retry_at_seconds

    def with_failure(self, now_seconds: float) -> "Breaker":
        return Breaker(self.failures + 1, now_seconds + _OPEN_SECONDS)

    def with_attempt(self, now_seconds: float) -> "Breaker":
        """While it is open only one attempt at a time is allowed."""
        if self.failures < _MAX_FAILURES:
            return self
        return Breaker(self.failures, now_seconds + _OPEN_SECONDS)
