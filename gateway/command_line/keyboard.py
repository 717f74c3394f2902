"""Single keys of a terminal, which gets its own settings back in any case."""

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Self


class Keyboard:
    """`with Keyboard() as keyboard:`. Without a terminal it only waits."""

    def __init__(self, descriptor: int | None = None) -> None:
        """descriptor: of the terminal; None: standard input, if it is one."""
        self._descriptor = _find_terminal() if descriptor is None else descriptor
        self._before: list[int | list[bytes | int]] | None = None

    def __enter__(self) -> Self:
        if self._descriptor is not None:
            self._before = termios.tcgetattr(self._descriptor)
            # Ctrl-C stays a signal.
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None and self._before is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The next key, or "" if none was pressed within the time."""
        watched = [] if self._descriptor is None else [self._descriptor]
        ready, _, _ = select.select(watched, [], [], seconds)
        if not ready or self._descriptor is None:
            return ""
        pressed = os.read(self._descriptor, 16)
        if not pressed:
            # The terminal was closed; it would be ready for ever.
            self._descriptor = None
        return pressed.decode("utf-8", "replace")


def _find_terminal() -> int | None:
    return sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
