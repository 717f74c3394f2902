"""Plays the nine conversations through the real plan: each policy, at each price table where that matters."""

import asyncio
import logging
import multiprocessing
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.economics.tariffs import TARIFFS, Tariff
from bench.economics.workloads import Workload
from gateway.replay.recordings import RecordedRequest
from gateway.replay.results import RequestRun
from gateway.replay.simulation import ReplaySession, choose_settings, open_gateways
from gateway.settings import Settings, load_settings

TODAY: Final = "today"
DEFAULT: Final = "adaptive"
# In the order of the table: the default as it was before prices mattered, the steps from there, and it.
ADAPTIVE: Final[Mapping[str, str]] = {
    TODAY: "preset: adaptive, economy: 0, summary: {ride: never}",
    "today, summaries ride": "preset: adaptive, economy: 0",
    "and no pruning": "preset: adaptive, economy: 0, compaction: {prune: false}",
    DEFAULT: "preset: adaptive",
}
# What is kept beside the plan takes time and changes no bill.
_QUIET: Final = "session_summary: false, originals: {keep: false}"
PRESETS: Final = (
    "opencode",
    "opencode-current",
    "prune_only",
    "recent",
    "rfc007",
    "rolling",
    "utilization",
)


@dataclass(frozen=True)
class Play:
    """Which policy a conversation was played with, at which price table."""

    workload: str
    tariff: str
    policy: str


class _Done(msgspec.Struct):
    """The requests of each play of one conversation."""

    tariff: str
    policy: str
    runs: tuple[RequestRun, ...]


Plays = dict[Play, tuple[RequestRun, ...]]


class _Task(NamedTuple):
    workload: Workload
    # By their names, as a settings file has them.
    policies: Mapping[str, str]
    # Those that do not look at prices.
    fixed: frozenset[str]


def play_all(
    workloads: Sequence[Workload],
    policies: Mapping[str, str],
    fixed: Sequence[str] = (),
    processes: int = 2,
) -> Plays:
    """policies: by their names, as a settings file has them. fixed: those that do not look at prices."""
    plays: Plays = {}
    never = frozenset(fixed)
    if processes <= 1:
        results = [_play_apart(_Task(workload, policies, never)) for workload in workloads]
    else:
        # The longest first, and one by one: else one process would have much to do at the end.
        ordered = sorted(workloads, key=lambda each: -len(each.messages))
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            results = list(
                pool.imap(_play_apart, [_Task(each, policies, never) for each in ordered], chunksize=1)
            )
        workloads = ordered
    for workload, data in zip(workloads, results, strict=True):
        for done in msgspec.msgpack.decode(data, type=list[_Done]):
            plays[Play(workload.name, done.tariff, done.policy)] = done.runs
        for name in fixed:
            # What is sent is the same without a cache, and a bill without one leaves it out.
            automatic = plays[Play(workload.name, TARIFFS[0].name, name)]
            plays[Play(workload.name, TARIFFS[-1].name, name)] = automatic
    return plays


def _play_apart(task: _Task) -> bytes:
    # What a gateway would log of each conversation is in the tables.
    logging.getLogger("gateway").setLevel(logging.CRITICAL)
    found: list[_Done] = []
    asyncio.run(_play(task, found))
    return msgspec.msgpack.encode(found)


async def _play(task: _Task, found: list[_Done]) -> None:
    workload = task.workload
    choices = {
        (tariff, name): settings
        for tariff in TARIFFS
        for name, settings in make_settings(tariff, task.policies, workload.window).items()
        if tariff.cache != "none" or name not in task.fixed
    }
    names = {f"{tariff.name}: {name}": (tariff, name) for tariff, name in choices}
    async with open_gateways({name: choices[key] for name, key in names.items()}) as gateways:
        sessions = {
            key: ReplaySession(gateway, f"bench-{place}")
            for place, (gateway, key) in enumerate(zip(gateways, names.values(), strict=True))
        }
        for is_marked in (False, True):
            chosen = [
                each for (tariff, _), each in sessions.items() if (tariff.cache == "marked") == is_marked
            ]
            await _play_each(workload.list_requests(is_marked=is_marked), chosen)
        for (tariff, name), session in sessions.items():
            found.append(_Done(tariff.name, name, session.finish(workload.name).requests))


async def _play_each(requests: Iterable[RecordedRequest], sessions: Sequence[ReplaySession]) -> None:
    for request in requests:
        body = request.body
        for session in sessions:
            await session.play(request, body)


def make_settings(tariff: Tariff, policies: Mapping[str, str], window: int) -> dict[str, Settings]:
    """By the name of the policy."""
    price = tariff.price
    parts = {
        "input": price.input,
        "output": price.output,
        "cached": price.cached_input,
        "write": price.cache_write,
    }
    shown = ", ".join(f"{name}: {usd}" for name, usd in parts.items() if usd is not None)
    lines = [f"  {_quote(name)}: {{{text}, {_QUIET}}}" for name, text in policies.items()]
    text = "\n".join([f'models: [{{match: "*", price: {{{shown}}}}}]', "policies:", *lines, ""])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.yaml"
        path.write_text(text, "utf-8")
        settings = load_settings(path, {})
    return choose_settings(settings, [*policies], window)


def _quote(name: str) -> str:
    return f'"{name}"'
