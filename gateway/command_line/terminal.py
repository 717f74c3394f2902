"""The terminal that this process was started from, if any."""

import os
from typing import Final

_CONTROLLING: Final = "/dev/tty"


class Terminal:
    """To be made when the process starts."""

    def __init__(self) -> None:
        self._was_there = _is_there()

    @property
    def is_gone(self) -> bool:
        """Whether it was closed since. False for a process that never had one, such as a service."""
        return self._was_there and not _is_there()


def _is_there() -> bool:
    try:
        os.close(os.open(_CONTROLLING, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
