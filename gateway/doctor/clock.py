"""Is the clock of this machine right? The upstreams' `Date` headers tell, to a second."""

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Final

from gateway.doctor.finding import Diagnosis, note_ok, warn

_SUBJECT: Final = "clock"
# Signed webhooks are refused after some minutes; a response takes some seconds.
_MOST_SECONDS: Final = 60.0
_HOUR: Final = 3_600.0


def examine_clock(dates: dict[str, str], now: float | None = None) -> Iterator[Diagnosis]:
    """dates: the header of each upstream that sent one. now: Unix time, of this machine."""
    here = time.time() if now is None else now
    offsets = {name: here - seconds for name, date in dates.items() if (seconds := _parse(date)) is not None}
    if not offsets:
        return
    name, offset = min(offsets.items(), key=lambda pair: abs(pair[1]))
    if abs(offset) <= _MOST_SECONDS:
        yield note_ok(_SUBJECT, f"agrees with {name}, to some seconds")
        return
    way = "ahead of" if offset > 0 else "behind"
    shown = f"{abs(offset) / _HOUR:.1f} hours" if abs(offset) >= _HOUR / 2 else f"{abs(offset):.0f} seconds"
    yield warn(_SUBJECT, f"this clock is {shown} {way} that of {name}", "timedatectl set-ntp true")


def _parse(date: str) -> float | None:
    """Unix time; None if it is not a date."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None
