"""When the server counts as away, and when it is tried again. Decides; knows no connection and no log.

It opens at the first reply that does not come in time. It closes when the server has answered in time: once,
or three times if it had failed again soon after its last return.
"""

from typing import Final

# However long it was away, a server is found within two seconds of its return.
_PAUSES_SECONDS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
# A server that fails so soon after its return comes and goes.
_UNSTEADY_SECONDS: Final = 10.0
_UNSTEADY_TRIALS: Final = 3
_UNSTEADY_PAUSE: Final = 3


class LinkBreaker:
    """Times are of a monotonic clock."""

    def __init__(self) -> None:
        self.is_open = True
        self._pauses = 0
        self._trials_left = 1
        self._closed_at: float | None = None

    def note_loss(self, now: float) -> None:
        is_unsteady = self._closed_at is not None and now - self._closed_at < _UNSTEADY_SECONDS
        self._trials_left = _UNSTEADY_TRIALS if is_unsteady else 1
        self._pauses = _UNSTEADY_PAUSE if is_unsteady else 0
        self.is_open = True

    def note_trial(self, now: float) -> bool:
        """The server has answered a trial in time. True if it counts as back."""
        self._trials_left -= 1
        if self._trials_left > 0:
            return False
        self.is_open = False
        self._closed_at = now
        return True

    def next_pause_seconds(self) -> float:
        """Until the next trial."""
        pause = _PAUSES_SECONDS[min(self._pauses, len(_PAUSES_SECONDS) - 1)]
        self._pauses += 1
        return pause
