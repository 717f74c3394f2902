"""When to stop asking a summariser that keeps failing. Values only; the caller brings the clock."""

from dataclasses import dataclass

# DESIGN §6: open after three failures in a row, half-open later.
_FAILURES = 3
_OPEN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Breaker:
    failures: int = 0
    retry_at_seconds: float = 0.0

    def allows(self, now_seconds: float) -> bool:
        """Closed, or open for long enough that one attempt may try again."""
        return self.failures < _FAILURES or now_seconds >= self.retry_at_seconds

    def with_failure(self, now_seconds: float) -> "Breaker":
        return Breaker(self.failures + 1, now_seconds + _OPEN_SECONDS)

    def with_attempt(self, now_seconds: float) -> "Breaker":
        """While it is open only one attempt at a time is let through."""
        if self.failures < _FAILURES:
            return self
        return Breaker(self.failures, now_seconds + _OPEN_SECONDS)
