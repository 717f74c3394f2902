"""Memory after few and after many requests: conversations from 1 KB to 100 KB that come and go."""

import asyncio
from dataclasses import replace
from typing import Final

from bench.load import send_turns
from bench.subject import Subject
from bench.table import print_table, render_target
from bench.talk import Shape, Talk, make_talks

_COLUMNS = ("caches", "requests", "RSS MB", "requests", "RSS MB", "ratio", "target")
_MAX_RATIO: Final = 1.1
_TURNS: Final = 10
_CONNECTIONS: Final = 16
# Sizes at which conversations begin. Each grows for ten turns; half of them are short chats.
_START_BYTES: Final = (900, 900, 900, 900, 4_000, 12_000, 30_000, 85_000)


async def read_memory_row(gateway: Subject, caches: str, first: int, last: int) -> tuple[str, ...]:
    """One row: the memory of a new gateway after `first` and after `last` requests."""
    await _send(gateway, first)
    early = await _read_settled(gateway)
    await _send(gateway, last - first)
    late = await _read_settled(gateway)
    ratio = late / early
    target = render_target(ratio, _MAX_RATIO, at_least=False)
    return caches, f"{first}", f"{early / 1e6:.0f}", f"{last}", f"{late / 1e6:.0f}", f"{ratio:.2f}", target


def print_memory(rows: list[tuple[str, ...]]) -> None:
    print_table("Memory: mixed conversations of 1 KB to 100 KB that come and go", _COLUMNS, rows)


async def _send(gateway: Subject, requests: int) -> None:
    """Sends groups of conversations, so that old ones end before new ones begin."""
    group = len(_START_BYTES) * _TURNS * 2
    for _ in range(max(1, requests // group)):
        await send_turns(gateway.port, _make_group(), range(_TURNS), _CONNECTIONS)


def _make_group() -> list[Talk]:
    chat = Shape(model="bench-wide", start_bytes=900, turn_bytes=400, turns=_TURNS, has_tools=False)
    agent = replace(chat, turn_bytes=1_500, has_tools=True)
    talks = []
    for number, size in enumerate(_START_BYTES * 2):
        shape = replace(chat if size < 10_000 else agent, start_bytes=size)
        talks += make_talks(replace(shape, events=2) if number % 3 == 0 else shape, 1)
    return talks


async def _read_settled(gateway: Subject) -> int:
    await asyncio.sleep(gateway.settle_seconds)
    return gateway.read_rss_bytes()
