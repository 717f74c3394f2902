"""The index over originals: how long a search takes, how fast messages are indexed, and what share of a
turn's cost that is.

The originals are recorded sessions, repeated under other names until there is enough of them.
"""

import asyncio
import json
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final, NamedTuple

import httpx2 as httpx

from bench.subject import Subject
from bench.table import print_table, render_target
from gateway.core.search.ranking import PieceCandidate, choose_pieces
from gateway.core.search.terms import find_terms
from gateway.originals.archive import cut_slices
from gateway.originals.index import IndexBatch, IndexedMessage, add_batch, find_pieces
from gateway.originals.index_folder import IndexFolder
from gateway.originals.parts import read_parts

_SHARED: Final = Path(os.environ.get("GATEWAY_SHARED") or Path(__file__).resolve().parents[2] / "shared")
_TAG: Final = "0" * 32
_NEVER: Final = 1e12
_MANY: Final = 20
_ROUNDS: Final = 3
_MOST_PIECES: Final = 5
_MOST_TOKENS: Final = 1_600
_SEARCH_MS: Final = 10.0
_TURN_SHARE: Final = 0.05
# What people and models ask.
_QUESTIONS: Final = (
    "why does the test for compaction fail with a timeout",
    "gateway/core/search.py",
    "what was the path of the config file",
    "getUserName",
    "npm install failed with code 1",
    "which port does the server listen on",
    "TypeError: cannot read properties of undefined",
    "9f86d08",
    "refactor the session manager to use async",
    "README.md",
    "错误处理",
    "error",
)
# Names that differ from one session to the next.
_NAME: Final = re.compile(rb"\b(?:test|get|set|make|is|has|to|def|func)_?(?=[A-Za-z]{4})")
_TURNS: Final = 60


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """seconds: of CPU."""

    text_bytes: int
    file_bytes: int
    seconds: float


class Searched(NamedTuple):
    """One search. On a busy machine most of its time is waiting for a core."""

    seconds: float
    cpu_seconds: float


async def print_recall_index(gateway: Subject, megabytes: int) -> None:
    """gateway: with a window that these sessions fill."""
    sessions = _load_sessions()
    if not sessions:
        print(f"\nIndex: no recorded sessions in {_SHARED}")
        return
    rows, rate = [], 0.0
    for conversations in (_MANY, 1):
        with tempfile.TemporaryDirectory() as folder:
            index = IndexFolder(Path(folder) / "search")
            indexed, lists = _fill(index, Path(folder), sessions, megabytes * 1_000_000, conversations)
            times = _search(index, sessions, lists)
        rate = indexed.text_bytes / indexed.seconds
        rows.append(
            (
                f"{megabytes} MB in {conversations}",
                *(f"{figure * 1e3:.1f}" for figure in _describe([each.seconds for each in times])),
                *(f"{figure * 1e3:.1f}" for figure in _describe([each.cpu_seconds for each in times])[:2]),
                render_target(_find_median(times) * 1e3, _SEARCH_MS, at_least=False),
                f"{rate / 1e6:.1f}",
                f"{indexed.file_bytes / indexed.text_bytes:.2f}",
            )
        )
    columns = (
        *("originals", "median ms", "p90 ms", "longest ms", "CPU median", "CPU p90", "CPU target"),
        *("indexed MB/s", "file/text"),
    )
    print_table("Search over originals, in so many conversations (MB/s of CPU time)", columns, rows)
    await _print_share(gateway, sessions, rate)


async def _print_share(gateway: Subject, sessions: Sequence[Sequence[bytes]], rate: float) -> None:
    """rate: bytes of messages that are indexed in a second of CPU."""
    session = max(sessions, key=len)
    seconds, turns, size = await _measure_turns(gateway, session)
    share = size / turns / rate / (seconds / turns)
    row = (
        f"{turns}",
        f"{seconds / turns * 1e3:.2f}",
        f"{size / turns / 1e3:.1f}",
        f"{size / turns / rate * 1e3:.2f}",
        f"{share:.1%}",
        render_target(share, _TURN_SHARE, at_least=False),
    )
    columns = ("turns", "gateway CPU ms/turn", "new KB/turn", "indexing CPU ms/turn", "share", "target")
    print_table(
        "Indexing as a share of the gateway's CPU time, where conversations are indexed", columns, [row]
    )


def _load_sessions() -> list[list[bytes]]:
    paths = sorted((_SHARED / "data" / "transcripts").glob("*/*.json"))
    loaded = [json.loads(path.read_text("utf-8"))["messages"] for path in paths]
    return [[json.dumps(message, ensure_ascii=False).encode() for message in some] for some in loaded]


def _fill(
    folder: IndexFolder, place: Path, sessions: Sequence[list[bytes]], size: int, conversations: int
) -> tuple[Indexed, list[list[str]]]:
    """And the lists of each conversation. size: in bytes of messages, shared out evenly."""
    lists: list[list[str]] = []
    begun = time.process_time()
    text_bytes = 0
    messages = _repeat(sessions)
    for number in range(conversations):
        some, some_bytes = list[tuple[int, bytes]](), 0
        while some_bytes < size / conversations:
            some.append((len(some), next(messages)))
            some_bytes += len(some[-1][1])
        text_bytes += some_bytes
        lists.append([])
        for at, batch in enumerate(cut_slices(some, lambda each: len(each[1]))):
            lists[-1].append(f"c{number}/{at:04}")
            parsed = [_parse(position, raw) for position, raw in batch]
            folder.run(partial(add_batch, batch=IndexBatch(_TAG, lists[-1][-1], 0, 1, _NEVER, parsed)))
    seconds = time.process_time() - begun
    file_bytes = sum(path.stat().st_size for path in place.rglob("*.sqlite"))
    return Indexed(text_bytes=text_bytes, file_bytes=file_bytes, seconds=seconds), lists


def _parse(position: int, raw: bytes) -> IndexedMessage:
    return IndexedMessage(position, read_parts("chat", raw, ()))


def _repeat(sessions: Sequence[list[bytes]]) -> Iterator[bytes]:
    for number, session in enumerate(cycle(sessions)):
        for raw in session:
            yield _NAME.sub(rb"\g<0>v%d" % (number // len(sessions)), raw)


def _search(
    folder: IndexFolder, sessions: Sequence[list[bytes]], lists: Sequence[Sequence[str]]
) -> list[Searched]:
    """Of questions, and of words that the sessions hold. lists: of each conversation."""
    rng = random.Random(1)
    words = [word for session in sessions for raw in session[:20] for word in raw.decode().split()]
    drawn = [" ".join(rng.sample(words, count)) for count in (1, 2, 4, 8, 16) for _ in range(4)]
    times = []
    for number in range(_ROUNDS * (len(_QUESTIONS) + len(drawn))):
        query = (*_QUESTIONS, *drawn)[number % (len(_QUESTIONS) + len(drawn))]
        begun, cpu_begun = time.perf_counter(), time.process_time()
        _find(folder, lists[number % len(lists)], query)
        times.append(Searched(time.perf_counter() - begun, time.process_time() - cpu_begun))
    return times


def _find(folder: IndexFolder, lists: Sequence[str], query: str) -> None:
    rows = folder.run(lambda index: find_pieces(index, _TAG, lists, find_terms(query)))
    candidates = [
        PieceCandidate((row.position,), row.start, row.start + len(row.text), row.text) for row in rows
    ]
    choose_pieces(candidates, _MOST_PIECES, _MOST_TOKENS)


def _find_median(times: Sequence[Searched]) -> float:
    return statistics.median(each.cpu_seconds for each in times)


def _describe(times: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(times), statistics.quantiles(times, n=10)[-1], max(times)


async def _measure_turns(gateway: Subject, session: Sequence[bytes]) -> tuple[float, int, int]:
    """CPU seconds of the gateway, turns, and bytes of messages that the last one has."""
    ends = [at for at, raw in enumerate(session) if json.loads(raw)["role"] == "assistant" and at][:_TURNS]
    before = gateway.read_cpu_seconds()
    async with httpx.AsyncClient(timeout=60) as client:
        for end in ends:
            body = b'{"model":"bench-medium","messages":[' + b",".join(session[:end]) + b"]}"
            url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
            (await client.post(url, content=body)).raise_for_status()
    await asyncio.sleep(gateway.settle_seconds)
    return gateway.read_cpu_seconds() - before, len(ends), sum(map(len, session[: ends[-1]]))
