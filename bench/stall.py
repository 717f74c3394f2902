"""How long a gateway keeps others waiting: asks `/healthz` again and again from a process of its own.

Run as `python -m bench.stall PORT`: prints `ready` after the first answer and, when its input ends, one line
of JSON with what `Stall` holds.
"""

import asyncio
import json
import socket
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_REPOSITORY: Final = Path(__file__).resolve().parents[1]
_SPACING_SECONDS: Final = 0.010
_REQUEST: Final = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Waits for an answer of `/healthz`.

    A question that waits a second stands for the hundred that would have been asked meanwhile, each of which
    would have waited a little less.
    """

    longest_seconds: float
    p99_seconds: float
    asked: int
    lost: int  # connections that the gateway refused or closed


def make_stall(waits: Sequence[float], lost: int) -> Stall:
    """waits: in seconds, at least one."""
    missed = [
        wait - at * _SPACING_SECONDS for wait in waits for at in range(1, int(wait / _SPACING_SECONDS) + 1)
    ]
    all_waits = sorted([*waits, *missed])
    p99 = all_waits[int(len(all_waits) * 0.99)]
    return Stall(longest_seconds=all_waits[-1], p99_seconds=p99, asked=len(waits), lost=lost)


class StallMeter:
    """`async with StallMeter(port) as meter: …`, and afterwards `meter.stall`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._child: Process | None = None
        self._stall: Stall | None = None

    @property
    def stall(self) -> Stall:
        """Once the block is left."""
        if self._stall is None:
            raise RuntimeError("the meter still runs, or its process failed")
        return self._stall

    async def __aenter__(self) -> Self:
        command = (sys.executable, "-m", "bench.stall", str(self._port))
        self._child = await asyncio.create_subprocess_exec(*command, cwd=_REPOSITORY, stdin=PIPE, stdout=PIPE)
        assert self._child.stdout is not None
        await self._child.stdout.readline()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        printed, _ = await self._child.communicate(b"")  # b"" also closes its input
        if printed:
            self._stall = Stall(**json.loads(printed))


class _Asker:
    """Asks in its thread. A question that is open when the meter ends counts with the time it has waited."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._waits: list[float] = []
        self._lost = 0
        self._asked_at: float | None = None
        self.is_answered = threading.Event()

    def run(self) -> None:
        link: socket.socket | None = None
        while True:
            self._asked_at = time.monotonic()
            try:
                link = link or socket.create_connection(("127.0.0.1", self._port))
                _ask(link)
            except OSError:
                self._lost += 1
                link = None
            wait = time.monotonic() - self._asked_at
            self._waits.append(wait)
            self._asked_at = None
            self.is_answered.set()
            time.sleep(max(0.0, _SPACING_SECONDS - wait))

    def sum_up(self) -> Stall:
        asked_at, waits = self._asked_at, list(self._waits)
        if asked_at is not None:
            waits.append(time.monotonic() - asked_at)
        return make_stall(waits, self._lost)


def _ask(link: socket.socket) -> None:
    """Raises OSError unless an answer with its whole head and body arrives; the body is small JSON."""
    link.sendall(_REQUEST)
    got = b""
    while not got.endswith(b"}"):
        piece = link.recv(65_536)
        if not piece:
            raise ConnectionResetError("closed without an answer")
        got += piece


def _run(port: int) -> None:
    asker = _Asker(port)
    threading.Thread(target=asker.run, daemon=True).start()
    asker.is_answered.wait()
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps(vars(asker.sum_up())))


if __name__ == "__main__":
    _run(int(sys.argv[1]))
