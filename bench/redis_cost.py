"""What the gateway costs Redis: operations, bytes and round trips per request, and memory per conversation.

Two replicas share one server. With affinity each conversation stays at one of them; otherwise a replica is
drawn for each turn, as a balancer without affinity does. The figures are counts of the server, so they do not
depend on the speed of the machine.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from bench.load import send_turns
from bench.scale import MEDIUM, MEDIUM_FULL, REDIS, SMALL
from bench.subject import Subject, running_redis, running_workers
from bench.table import print_table
from bench.talk import Shape, Talk, make_talks

_random = random.Random(20_261_123)
_CONNECTIONS: Final = 8
_REPLICAS: Final = 2
_WARM_UP: Final = 8
# What the server counts, but no request asks for.
_NOT_OF_REQUESTS: Final = frozenset(
    {"info", "hello", "client", "config", "auth", "select", "command", "dbsize"}
)
_NO_ORIGINALS: Final = "policies: {default: {originals: {keep: false}}}"
_REQUEST_COLUMNS: Final = (
    *("case", "replica", "requests", "operations", "round trips", "bytes to Redis", "bytes from Redis"),
    "most frequent operations",
)
_MEMORY_COLUMNS: Final = ("conversation", "conversations", "keys each", "KB each", "conversations per GB")


@dataclass(frozen=True)
class RedisCase:
    """primed: turns before the measurement, such as those that make the summary."""

    name: str
    shape: Shape
    talks: int
    primed: int = 1
    more: str = ""


@dataclass(frozen=True)
class RedisFigures:
    """What the server has counted since its start. reads: of its sockets, about one for each round trip."""

    calls: Mapping[str, int]
    reads: int
    in_bytes: int
    out_bytes: int
    memory_bytes: int
    keys: int

    @property
    def operations(self) -> int:
        return sum(self.calls.values())


def read_figures(server: Subject) -> RedisFigures:
    from redis import Redis

    with Redis(port=server.port) as client:
        # The client's types allow for its asyncio twin.
        stats = cast(dict[str, Any], client.info("stats"))
        commands = cast(dict[str, Any], client.info("commandstats"))
        memory = cast(dict[str, Any], client.info("memory"))
        return RedisFigures(
            calls=parse_calls({name: each["calls"] for name, each in commands.items()}),
            reads=stats["total_reads_processed"],
            in_bytes=stats["total_net_input_bytes"],
            out_bytes=stats["total_net_output_bytes"],
            memory_bytes=memory["used_memory"],
            keys=cast(int, client.dbsize()),
        )


def parse_calls(counts: Mapping[str, int]) -> dict[str, int]:
    """Calls by command, of those that requests cause: `cmdstat_config|get` is one of `config`."""
    calls: dict[str, int] = {}
    for name, count in counts.items():
        command = name.removeprefix("cmdstat_").partition("|")[0]
        if command not in _NOT_OF_REQUESTS:
            calls[command] = calls.get(command, 0) + count
    return calls


def subtract(after: RedisFigures, before: RedisFigures) -> RedisFigures:
    calls = {name: count - before.calls.get(name, 0) for name, count in after.calls.items()}
    return RedisFigures(
        calls={name: count for name, count in calls.items() if count},
        reads=after.reads - before.reads,
        in_bytes=after.in_bytes - before.in_bytes,
        out_bytes=after.out_bytes - before.out_bytes,
        memory_bytes=after.memory_bytes - before.memory_bytes,
        keys=after.keys - before.keys,
    )


def make_request_cases(scale: float) -> list[RedisCase]:
    small, medium = max(16, int(400 * scale)), max(8, int(80 * scale))
    return [
        RedisCase("1 KB untouched", SMALL, small),
        RedisCase("100 KB untouched", MEDIUM, medium),
        RedisCase("100 KB summary", MEDIUM_FULL, medium, primed=2),
    ]


def make_memory_cases(scale: float) -> list[RedisCase]:
    """Whole conversations, with their first turn."""
    small, medium = max(16, int(400 * scale)), max(8, int(80 * scale))
    return [
        RedisCase("chat of 4 KB, never near its window", SMALL, small, primed=0),
        RedisCase("agent of 110 KB, never near its window", MEDIUM, medium, primed=0),
        RedisCase("agent of 110 KB, summarized, no originals", MEDIUM_FULL, medium, 0, _NO_ORIGINALS),
        RedisCase("agent of 110 KB, summarized, with originals", MEDIUM_FULL, medium, primed=0),
    ]


async def measure_requests(stub: Subject, case: RedisCase) -> list[tuple[str, ...]]:
    """A row with affinity, and one without, each with a server and replicas of its own."""
    rows = []
    for routing in ("the same", "drawn"):
        with _running_replicas(stub, case.more) as (server, replicas):
            figures = await _measure(server, replicas, case, is_drawn=routing == "drawn")
        requests = case.talks * (case.shape.turns - case.primed)
        rows.append(_render_requests(case.name, routing, requests, figures))
    return rows


async def measure_memory(stub: Subject, case: RedisCase) -> tuple[str, ...]:
    with _running_replicas(stub, case.more) as (server, replicas):
        # Buffers, scripts and what is kept once for each tenant.
        await _measure(server, replicas, replace(case, talks=_WARM_UP), is_drawn=False)
        figures = await _measure(server, replicas, case, is_drawn=False)
    each_bytes = max(0.0, figures.memory_bytes / case.talks)
    return (
        case.name,
        f"{case.talks}",
        f"{figures.keys / case.talks:.1f}",
        f"{each_bytes / 1e3:.1f}",
        f"{1e9 / each_bytes:,.0f}" if each_bytes > 100 else "-",
    )


def print_requests(rows: Sequence[Sequence[str]]) -> None:
    title = (
        f"Redis per request: {_REPLICAS} replicas; a conversation stays at one, or one is drawn for each turn"
    )
    print_table(title, _REQUEST_COLUMNS, rows)
    print("  Counted by the server. Operations include those inside scripts; background writes are included.")


def print_memory_of_redis(rows: Sequence[Sequence[str]]) -> None:
    print_table("Redis memory: what whole conversations leave behind", _MEMORY_COLUMNS, rows)


@contextmanager
def _running_replicas(stub: Subject, more: str) -> Iterator[tuple[Subject, Sequence[Subject]]]:
    with ExitStack() as exits:
        server = exits.enter_context(running_redis())
        url = REDIS.format(port=server.port)
        replicas = [
            exits.enter_context(running_workers(stub, f"replica {at}", 1, store=url, more=more))
            for at in range(_REPLICAS)
        ]
        yield server, replicas


async def _measure(
    server: Subject, replicas: Sequence[Subject], case: RedisCase, *, is_drawn: bool
) -> RedisFigures:
    talks = make_talks(case.shape, case.talks)
    homes = [at % len(replicas) for at in range(len(talks))]
    for turn in range(case.primed):
        await _send_turn(replicas, talks, homes, turn)
    if case.primed:
        await _settle(replicas)
    before = read_figures(server)
    for turn in range(case.primed, case.shape.turns):
        if is_drawn:
            homes = [_random.randrange(len(replicas)) for _ in talks]
        await _send_turn(replicas, talks, homes, turn)
    await _settle(replicas)
    return subtract(read_figures(server), before)


async def _send_turn(
    replicas: Sequence[Subject], talks: Sequence[Talk], homes: Sequence[int], turn: int
) -> None:
    shares = [
        [talk for talk, home in zip(talks, homes, strict=True) if home == at] for at in range(len(replicas))
    ]
    turns = range(turn, turn + 1)
    work = [
        send_turns(replica.port, share, turns, _CONNECTIONS)
        for replica, share in zip(replicas, shares, strict=True)
    ]
    await asyncio.gather(*work)


async def _settle(replicas: Sequence[Subject]) -> None:
    """Heads are written, summaries made and originals archived."""
    await asyncio.sleep(max(replica.settle_seconds for replica in replicas))


def _render_requests(name: str, routing: str, requests: int, figures: RedisFigures) -> tuple[str, ...]:
    frequent = sorted(figures.calls.items(), key=lambda each: each[1], reverse=True)[:5]
    return (
        name,
        routing,
        f"{requests}",
        f"{figures.operations / requests:.2f}",
        f"{figures.reads / requests:.2f}",
        f"{figures.in_bytes / requests:.0f}",
        f"{figures.out_bytes / requests:.0f}",
        ", ".join(f"{command} {count / requests:.2f}" for command, count in frequent),
    )
