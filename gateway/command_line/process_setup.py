"""What every process of a running gateway sets up for itself: its log, its limits, and its end."""

import logging
import os
import signal
import sys
from typing import Final

from gateway.bounds.allocator import return_freed_memory
from gateway.bounds.descriptors import raise_limit

# Time to write what is queued after a second signal.
HURRY_SECONDS: Final = 0.7


def open_standard_streams() -> None:
    """Before anything else is opened: a socket with the number of a closed stream would be taken for it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The system gives the lowest free number. Workers inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def set_up_process(log_level: str, name: str = "") -> None:
    """name: that of the process in its log lines, where a gateway has several."""
    _set_up_logging(log_level, name)
    raise_limit()
    return_freed_memory()


def _set_up_logging(level: str, name: str) -> None:
    """For the gateway's own loggers: at `debug`, libraries log headers, and so keys."""
    words = ("%(asctime)s", *([name] if name else []), "%(levelname)s", "%(name)s", "%(message)s")
    logging.basicConfig(
        level=max(logging.INFO, logging.getLevelNamesMapping()[level.upper()]),
        format=" ".join(words),
        stream=sys.stderr,
    )
    logging.getLogger("gateway").setLevel(level.upper())
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def end_within(seconds: float) -> None:
    """The system ends the process then, even if the event loop is busy."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
