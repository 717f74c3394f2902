"""What it costs that somebody looks: requests per second with and without an open page.

The page is one listener of the events, and one request for the list every two seconds, on two hundred live
conversations. Rounds with and without it take place in turn on the same gateway.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.load import send_turns
from bench.subject import Subject
from bench.table import print_table, render_target
from bench.talk import Shape, Talk, make_talks

LIVE_CONVERSATIONS: Final = 200
# Requests per second with the page open, against those without.
_LEAST_RATIO: Final = 0.95
_LIST_SECONDS: Final = 2.0
_CONNECTIONS: Final = 16
# The first is only for warming up.
_PRIMED_TURNS: Final = 2
_LISTS: Final = (f"/api/v1/conversations?limit={LIVE_CONVERSATIONS}", "/api/conversations")
_READ_BYTES: Final = 1 << 16
_COLUMNS: Final = (
    *("conversations", "alone r/s", "watched r/s", "ratio", "target", "alone CPU us", "watched CPU us"),
    *("by CPU", "lists", "list KB", "events", "event KB"),
)


@dataclass
class Seen:
    """What the page was sent in all rounds."""

    lists: int = 0
    list_bytes: int = 0
    events: int = 0
    event_bytes: int = 0


@dataclass(frozen=True)
class WatchedRound:
    requests: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_us(self) -> float:
        """Per request."""
        return self.cpu_seconds / self.requests * 1e6


@dataclass
class _Page:
    """An open page, which reads what it is sent and looks at nothing."""

    port: int
    seen: Seen = field(default_factory=Seen)
    has_list: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        reader, writer = await self._ask("/api/events")
        try:
            while data := await reader.read(_READ_BYTES):
                self.seen.events += data.count(b"event: activity\n")
                self.seen.event_bytes += len(data)
        finally:
            writer.close()

    async def poll(self) -> None:
        path = await self._find_list()
        while True:
            self.seen.list_bytes += len(await self._read(path))
            self.seen.lists += 1
            self.has_list.set()
            await asyncio.sleep(_LIST_SECONDS)

    async def _find_list(self) -> str:
        """The newest that this gateway has."""
        for path in _LISTS:
            if (await self._read(path)).startswith(b"HTTP/1.1 200"):
                return path
        raise SystemExit("bench: the gateway shows no list of conversations")

    async def _read(self, path: str) -> bytes:
        reader, writer = await self._ask(path)
        try:
            return await reader.read(-1)
        finally:
            writer.close()

    async def _ask(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        return reader, writer


@asynccontextmanager
async def _open(page: _Page) -> AsyncIterator[None]:
    """Entered once it shows its list."""
    page.has_list.clear()
    tasks = [asyncio.create_task(page.listen()), asyncio.create_task(page.poll())]
    try:
        await page.has_list.wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def print_page(gateway: Subject, admin_port: int, *, rounds: int, turns: int) -> None:
    """rounds: pairs of one with and one without the page. turns: of each conversation in a round."""
    page = _Page(admin_port)
    alone, watched = await _measure(gateway, page, rounds, turns)
    rates = median(w.rate / a.rate for a, w in zip(alone, watched, strict=True))
    costs = median(a.cpu_us / w.cpu_us for a, w in zip(alone, watched, strict=True))
    seen = page.seen
    row = (
        f"{LIVE_CONVERSATIONS}",
        f"{median(each.rate for each in alone):.0f}",
        f"{median(each.rate for each in watched):.0f}",
        f"{rates:.3f}",
        render_target(rates, _LEAST_RATIO, at_least=True),
        f"{median(each.cpu_us for each in alone):.0f}",
        f"{median(each.cpu_us for each in watched):.0f}",
        f"{costs:.3f}",
        f"{seen.lists}",
        f"{seen.list_bytes / max(1, seen.lists) / 1_000:.0f}",
        f"{seen.events}",
        f"{seen.event_bytes / max(1, seen.events) / 1_000:.0f}",
    )
    seconds = sum(each.seconds for each in watched)
    title = f"Page: {rounds} pairs of rounds on live conversations of 1 KB, {seconds:.0f} s with an open page"
    print_table(title, _COLUMNS, [row])


async def _measure(
    gateway: Subject, page: _Page, rounds: int, turns: int
) -> tuple[list[WatchedRound], list[WatchedRound]]:
    """The rounds without and those with the page, in turn."""
    shape = Shape(
        model="bench-wide",
        start_bytes=900,
        turn_bytes=60,
        turns=_PRIMED_TURNS + 2 * rounds * turns,
        has_tools=False,
    )
    talks = make_talks(shape, LIVE_CONVERSATIONS)
    await send_turns(gateway.port, talks, range(_PRIMED_TURNS), _CONNECTIONS)
    alone, watched = list[WatchedRound](), list[WatchedRound]()
    for number in range(2 * rounds):
        start = _PRIMED_TURNS + number * turns
        part = range(start, start + turns)
        # In the order A B B A.
        if number % 4 in (0, 3):
            alone.append(await _run_round(gateway, talks, part))
            continue
        async with _open(page):
            watched.append(await _run_round(gateway, talks, part))
    return alone, watched


async def _run_round(gateway: Subject, talks: list[Talk], turns: range) -> WatchedRound:
    cpu_before, started = gateway.read_cpu_seconds(), time.perf_counter()
    load = await send_turns(gateway.port, talks, turns, _CONNECTIONS)
    seconds = time.perf_counter() - started
    return WatchedRound(load.requests, seconds, gateway.read_cpu_seconds() - cpu_before)
