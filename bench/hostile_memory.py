"""The memory of one gateway that is attacked in all the ways that cost memory, one after the other.

`python -m bench memory --hostile`. The bound is what docs/configuration.md says for the defaults.
"""

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

from bench.hostile_cases import CASES, MEGABYTE, Stage
from bench.subject import read_peak_rss_bytes, read_rss_bytes
from bench.table import print_table
from gateway.settings import Settings, load_settings
from tests.toy.product import Process, serve_process
from tests.toy.raw import RawUpstream

_COLUMNS: Final = ("attack", "RSS MB", "peak MB", "bound MB", "answers")
# Those that took most before there were bounds.
_CASES: Final = (
    *("ids", "model-names", "references", "items", "messages", "surrogate", "depth"),
    *("br-requests", "br-answers", "br-stream", "hang-ups", "non-readers", "heads"),
)
_SETTINGS: Final = """
store: "disk:{folder}/state"
upstreams:
  default: {{base_url: "{base_url}", discover: false}}
models:
  - {{match: "m", context: 2000000}}
"""
# A new gateway: Python, libraries, and the tokenizer's 70 MB.
_BASE_BYTES: Final = 150 * MEGABYTE
# Caches whose sizes are no settings, and what the allocator keeps between its blocks.
_OTHER_CACHES_BYTES: Final = 70 * MEGABYTE
# Bodies that wait for the archive of originals.
_ORIGINALS_BYTES: Final = 64 << 20
# A body with everything that is made of it while it is read; one at a time may go beyond the budget.
_COPIES: Final = 7
_RECORD_CACHES: Final = 8
# Requests beyond the bodies: heads, buffers of sockets.
_CONNECTIONS_BYTES: Final = 100 * MEGABYTE
_LARGE_BYTES: Final = 60 * MEGABYTE
_AT_ONCE: Final = 20


def count_bound(settings: Settings) -> int:
    """The most bytes that a gateway should use, with state on disk and some hundred connections."""
    cache = settings.cache
    caches = 2 * cache.bodies_bytes + 2 * cache.facts_bytes + cache.named_bytes
    caches += _RECORD_CACHES * cache.records_bytes + _OTHER_CACHES_BYTES
    bodies = settings.bounds.bodies_bytes + _COPIES * settings.listen.max_body_bytes
    return _BASE_BYTES + caches + bodies + _ORIGINALS_BYTES + _CONNECTIONS_BYTES


async def print_hostile_memory(patience_seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with RawUpstream() as upstream:
            settings = _SETTINGS.format(base_url=upstream.base_url, folder=folder)
            async with serve_process(settings, Path(folder)) as gateway:
                rows = await _read_rows(gateway, upstream, patience_seconds)
    print_table("Memory: one gateway, attacked in many ways one after the other", _COLUMNS, rows)


async def _read_rows(
    gateway: Process, upstream: RawUpstream, patience_seconds: float
) -> list[tuple[str, ...]]:
    bound = count_bound(load_settings(None, {}))
    stage, script = Stage(gateway.port, upstream), upstream.script
    attacks = [(CASES[name].title, CASES[name].attack) for name in _CASES]
    attacks.append((f"{_AT_ONCE} requests of 60 MB at once", _send_large))
    rows = [_render("nothing yet", gateway, bound, "")]
    for title, attack in attacks:
        upstream.script = script
        rows.append(_render(title, gateway, bound, await _attack(attack(stage), patience_seconds)))
    return rows


async def _attack(attack: Awaitable[str], patience_seconds: float) -> str:
    try:
        async with asyncio.timeout(patience_seconds):
            return await attack
    except TimeoutError:
        return "gave up"


async def _send_large(stage: Stage) -> str:
    """What does not fit into the budget gets 503."""
    body = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"a" * _LARGE_BYTES)
    return await stage.post_all("/v1/chat/completions", [body] * _AT_ONCE, at_once=_AT_ONCE)


def _render(title: str, gateway: Process, bound: int, answers: str) -> tuple[str, ...]:
    """The memory after an attack, and the most so far."""
    peak = read_peak_rss_bytes(gateway.pid)
    missed = " MISSED" if peak > bound else ""
    figures = (read_rss_bytes(gateway.pid), peak, bound)
    return (title, *(f"{figure / MEGABYTE:.0f}" for figure in figures), answers + missed)
