"""Whether the server is there: what the breaker decides, one log line per change, and who is told."""

import logging
import time
from collections.abc import Callable
from typing import Final

from gateway.store.redis.address import Address
from gateway.store.redis.breaker import LinkBreaker
from gateway.store.redis.replies import Reply
from gateway.store.redis.session import SessionError

_log = logging.getLogger("gateway.store.redis")

Notify = Callable[[], None]
_UP: Final = "up"
_AWAY: Final = "away"
_REFUSING: Final = "refusing"


class Condition:
    """is_silent: another connection to the same server logs the same."""

    def __init__(
        self, address: Address, *, is_silent: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._is_silent = is_silent
        self._clock = clock
        self._breaker = LinkBreaker()
        # None: not tried yet.
        self._logged: str | None = None
        self._lost_at: float | None = None
        self._epoch: bytes | None = None
        self._up: list[Notify] = []
        self._down: list[Notify] = []
        self._emptied: list[Notify] = []

    @property
    def is_up(self) -> bool:
        return not self._breaker.is_open

    def listen(
        self,
        *,
        up: Notify | None = None,
        down: Notify | None = None,
        emptied: Notify | None = None,
    ) -> None:
        """up, down: the server is back, or away. emptied: it no longer has what it held."""
        for listeners, listener in ((self._up, up), (self._down, down), (self._emptied, emptied)):
            if listener is not None:
                listeners.append(listener)

    def next_pause_seconds(self) -> float:
        return self._breaker.next_pause_seconds()

    def note_trial(self, epoch: Reply, own_epoch: bytes) -> bool:
        """The server has answered in time. True if it counts as back."""
        if not self._breaker.note_trial(self._clock()):
            return False
        lost_at, self._lost_at = self._lost_at, None
        if lost_at is not None:
            self._log(logging.INFO, _UP, "store %s is back after %.1f s", self._clock() - lost_at)
        self._logged = _UP
        self.note_epoch(epoch, own_epoch)
        _tell(self._up)
        return True

    def note_epoch(self, epoch: Reply, own_epoch: bytes) -> None:
        """epoch: what the server had; None if it had nothing and took ours. Refusals say nothing."""
        if epoch is not None and not isinstance(epoch, bytes):
            return
        known, self._epoch = self._epoch, epoch or own_epoch
        if known is not None and known != epoch:
            self._log(logging.WARNING, None, "store %s has lost its records: what is in use is written again")
            _tell(self._emptied)

    def note_failure(self, error: SessionError) -> None:
        """The server could not be reached, or cannot be used."""
        was_up = self.is_up
        if self._lost_at is None:
            self._lost_at = self._clock()
        if was_up:
            self._breaker.note_loss(self._clock())
        if error.is_final:
            self._log(
                logging.ERROR, _REFUSING, "store %s refuses this gateway (%s): state is in memory only", error
            )
        elif self._logged != _REFUSING:
            self._log(
                logging.WARNING, _AWAY, "store %s is away (%s): state is in memory until it is back", error
            )
        if was_up:
            _tell(self._down)

    def end(self) -> None:
        """Nothing is sent any more."""
        if self.is_up:
            self._breaker.note_loss(self._clock())
            _tell(self._down)

    def _log(self, level: int, state: str | None, text: str, *values: object) -> None:
        """Only what is new."""
        if state is not None and state == self._logged:
            return
        self._logged = state or self._logged
        if not self._is_silent:
            _log.log(level, text, self._address.shown, *values)


def _tell(listeners: list[Notify]) -> None:
    for listener in listeners:
        listener()
