"""How late the events of many streams arrive while other tenants send heavy requests.

The upstream writes into each event when it was due. A few streams go to the upstream straight, at the same
time: they show how late upstream, load and machine are without the gateway.
"""

import asyncio
import json
import re
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, cast

from bench.heavy import HEAVY_KINDS
from bench.measure import wait_for_calm
from bench.subject import Subject
from bench.table import print_table, render_target

_STREAMS: Final = 300
_STRAIGHT_STREAMS: Final = 30
# A model that writes ten pieces in a second.
_PACE_MS: Final = 100
# An event that is later than this is lost.
_PATIENCE_SECONDS: Final = 60.0
_P99_TARGET_MS: Final = 100.0
_MAX_TARGET_MS: Final = 250.0
_HONEST: Final = ("20 MB", "20,000 messages", "compactions", "1 MB of blanks")
_COLUMNS: Final = (
    *("beside", "answers", "straight p99 ms", "max", "gateway p50 ms", "p99", "target", "max", "target"),
    "lost",
)
_BODY: Final = (
    b'{"model":"bench-wide","stream":true,"messages":[{"role":"user","content":"Stream %d: count."}]}'
)
_HEAD: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer sk-stream-%d\r\nX-Bench-Events: %d\r\nX-Bench-Pace-Ms: %d\r\n"
    b"Content-Length: %d\r\n\r\n"
)
_DUE: Final = re.compile(rb"due=(\d+);")
# Longer than what `_DUE` finds.
_OVERLAP_BYTES: Final = 32


@dataclass
class Lateness:
    """In milliseconds, of every event that arrived."""

    expected: int
    all_ms: list[float] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return self.expected - len(self.all_ms)

    def find_quantile(self, share: float) -> float:
        ordered = sorted(self.all_ms)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


class _PacedStream(asyncio.Protocol):
    """Asks for one stream, and notes how late each of its events arrives."""

    def __init__(self, request: bytes, events: int, lateness: Lateness) -> None:
        self._request = request
        self._left = events
        self._all_ms = lateness.all_ms
        self._rest = b""
        self.is_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        data = self._rest + data
        end = 0
        for found in _DUE.finditer(data):
            self._all_ms.append(now * 1e3 - int(found[1]) / 1e3)
            self._left -= 1
            end = found.end()
        self._rest = data[max(end, len(data) - _OVERLAP_BYTES) :]
        if not self._left:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self.is_done.done():
            self.is_done.set_result(None)


async def print_streams(gateway: Subject, stub: Subject, *, seconds: float) -> None:
    """seconds: how long the streams last in each case."""
    cases: list[Sequence[str]] = [(), *((name,) for name in HEAVY_KINDS), _HONEST]
    rows = []
    for names in cases:
        async with _heavy_work(gateway.port, names) as answers:
            straight, through = await _measure(gateway.port, stub.port, int(seconds * 1_000 / _PACE_MS))
        rows.append(_render(names, answers, straight, through))
        await wait_for_calm(gateway)
    print_table(f"Streams: {_STREAMS}, an event every {_PACE_MS} ms, beside heavy requests", _COLUMNS, rows)


@asynccontextmanager
async def _heavy_work(port: int, names: Sequence[str]) -> AsyncIterator[dict[str, int]]:
    """Yields what is filled at the end: the number of answers of each kind."""
    answers: dict[str, int] = {}
    command = (sys.executable, "-m", "bench.heavy", str(port), *names)
    child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 20)
    assert child.stdout is not None
    await child.stdout.readline()
    yield answers
    printed, _ = await child.communicate(b"")
    answers |= json.loads(printed)


async def _measure(gateway_port: int, stub_port: int, events: int) -> tuple[Lateness, Lateness]:
    straight, through = Lateness(_STRAIGHT_STREAMS * events), Lateness(_STREAMS * events)
    ports = [stub_port] * _STRAIGHT_STREAMS + [gateway_port] * _STREAMS
    opened = []
    loop = asyncio.get_running_loop()
    for number, port in enumerate(ports):
        lateness = straight if port == stub_port else through
        body = _BODY % number
        request = _HEAD % (number, events, _PACE_MS, len(body)) + body
        made = await loop.create_connection(_make_stream(request, events, lateness), "127.0.0.1", port)
        opened.append(made)
    lasting = events * _PACE_MS / 1_000
    await asyncio.wait([stream.is_done for _, stream in opened], timeout=lasting + _PATIENCE_SECONDS)
    for transport, _ in opened:
        transport.close()
    return straight, through


def _make_stream(request: bytes, events: int, lateness: Lateness) -> Callable[[], _PacedStream]:
    return lambda: _PacedStream(request, events, lateness)


def _render(
    names: Sequence[str], answers: dict[str, int], straight: Lateness, through: Lateness
) -> tuple[str, ...]:
    p99, longest = through.find_quantile(0.99), through.find_quantile(1.0)
    return (
        " + ".join(names) or "nothing",
        " + ".join(str(answers[name]) for name in names),
        f"{straight.find_quantile(0.99):.0f}",
        f"{straight.find_quantile(1.0):.0f}",
        f"{through.find_quantile(0.5):.0f}",
        f"{p99:.0f}",
        render_target(p99, _P99_TARGET_MS, at_least=False),
        f"{longest:.0f}",
        render_target(longest, _MAX_TARGET_MS, at_least=False),
        f"{through.lost + straight.lost}",
    )
