"""A real Redis in every kind of trouble under two real gateways: traffic goes on, and says so once."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Note
from tests.covering import choose
from tests.hostile.process import ProcessGateway, running_process
from tests.replicas.load import WINDOW, Load, running_load
from tests.toy.gateway import make_settings
from tests.toy.redis_server import RedisServer, requires_redis, running_redis
from tests.toy.running import wait_until
from tests.toy.slow_proxy import SlowProxy, running_proxy
from tests.toy.upstream import ToyUpstream

pytestmark = [requires_redis, pytest.mark.timeout(300)]

TABLE = (
    "Redis in trouble: requests, median ms and p99 ms before · while it lasts · failed · seconds until both"
    " gateways use it again"
)
# The half a minute takes too long for every run.
OUTAGES = (pytest.param(2.0, id="2s"), pytest.param(30.0, id="30s", marks=pytest.mark.exhaustive))
# As many requests before the trouble as let the first summaries be made.
_BEFORE, _AFTER = 120, 60
_LINE = re.compile(r"^\S+ \S+ (?:INFO|WARNING|ERROR) gateway\.store\.redis store \S+ (.*)$", re.MULTILINE)
AWAY, BACK, LOST = "is away", "is back", "has lost its records"
REFUSED, TAKEN = "takes no writes", "takes writes again"
ABSENT = "counts as absent"
_KNOWN = (AWAY, BACK, LOST, REFUSED, TAKEN, ABSENT)


@dataclass
class Site:
    """The gateways reach the server through the proxy, and wait for it no longer than by default."""

    redis: RedisServer
    proxy: SlowProxy
    toy: ToyUpstream
    gateways: tuple[ProcessGateway, ProcessGateway]
    load: Load

    async def wait_for(self, state: str, before: str) -> float:
        """The seconds until this is the newest of the two states in the logs of both gateways."""
        started = time.monotonic()
        states = (state, before)
        await wait_until(lambda: all(self._lines(each, states)[-1:] == [state] for each in self.gateways), 60)
        return time.monotonic() - started

    def count(self, line: str) -> list[int]:
        return [len(self._lines(gateway, (line,))) for gateway in self.gateways]

    def describe(self) -> str:
        load = self.load
        return f"{load.describe('before')}   {load.describe('trouble')}   {len(load.failed):3}"

    def assert_calm(self) -> None:
        """No request has failed. The logs hold one line for each change, and nothing to act on.

        On a busy machine the server may seem away for a moment at any time, so there may be more changes.
        """
        assert self.load.failed == []
        for gateway in self.gateways:
            assert "Traceback" not in gateway.log
            assert " ERROR " not in gateway.log, gateway.log
            for states in ((AWAY, BACK), (REFUSED, TAKEN)):
                lines = self._lines(gateway, states)
                assert all(line == states[at % 2] for at, line in enumerate(lines)), lines

    def _lines(self, gateway: ProcessGateway, wanted: Sequence[str]) -> list[str]:
        """What a log says of the store, as far as it is one of these."""
        said = [self._shorten(line) for line in _LINE.findall(gateway.log)]
        return [line for line in said if line in wanted]

    def _shorten(self, line: str) -> str:
        return next(known for known in _KNOWN if known in line)


@asynccontextmanager
async def opening_site(folder: Path) -> AsyncIterator[Site]:
    """Under load, with so many requests behind it that there are summaries."""
    folders = [folder / name for name in ("one", "two")]
    for each in folders:
        each.mkdir()
    async with (
        running_redis() as redis,
        running_proxy(redis.port) as proxy,
        ToyUpstream(window=WINDOW) as toy,
    ):
        settings = make_settings(toy, store=f"redis://127.0.0.1:{proxy.port}/0")
        async with (
            running_process(settings, folders[0]) as one,
            running_process(settings, folders[1]) as two,
            running_load([one.base_url, two.base_url]) as load,
        ):
            await load.wait_for(_BEFORE)
            assert toy.summaries
            yield Site(redis, proxy, toy, (one, two), load)


@pytest.mark.parametrize("seconds", OUTAGES)
async def test_no_request_fails_while_redis_is_stopped_and_starts_again_empty(
    tmp_path: Path, seconds: float, note_row: Note
) -> None:
    async with opening_site(tmp_path) as site:
        site.load.phase = "trouble"
        await site.redis.kill()
        await site.wait_for(AWAY, BACK)
        await asyncio.sleep(seconds)
        await site.load.wait_for(1)
        await site.redis.start()
        await finish(site, f"stopped for {seconds:.0f} s, then empty", note_row)
        assert site.count(LOST) == [1, 1]
        # What is in use has been written again.
        assert [key for key in await site.redis.list_keys() if ":head:" in key]


async def finish(site: Site, name: str, note_row: Note, states: tuple[str, str] = (BACK, AWAY)) -> None:
    """The trouble is over: traffic goes on as before."""
    back_seconds = await site.wait_for(*states)
    site.load.phase = "after"
    await site.load.wait_for(_AFTER)
    note_row(TABLE, f"{name:28} {site.describe()}  {back_seconds:5.1f}")
    site.assert_calm()


async def test_no_request_fails_while_every_reply_is_late(tmp_path: Path, note_row: Note) -> None:
    async with opening_site(tmp_path) as site:
        site.load.phase = "trouble"
        site.proxy.delay_seconds = 0.3
        await site.wait_for(AWAY, BACK)
        await site.load.wait_for(_AFTER)
        site.proxy.delay_seconds = 0.0
        await finish(site, "each reply 300 ms late", note_row)


@pytest.mark.parametrize("way", choose(["stalled sockets", "stopped process"], [0]))
async def test_no_request_fails_while_open_connections_are_silent(
    tmp_path: Path, way: str, note_row: Note
) -> None:
    async with opening_site(tmp_path) as site:
        site.load.phase = "trouble"
        if way == "stalled sockets":
            site.proxy.stall()
        else:
            site.redis.pause()
        await site.wait_for(AWAY, BACK)
        await site.load.wait_for(_AFTER)
        if way == "stalled sockets":
            site.proxy.delay_seconds = 0.0
            await site.proxy.cut()
        else:
            site.redis.resume()
        await finish(site, way, note_row)


async def test_no_request_fails_while_redis_is_full(tmp_path: Path, note_row: Note) -> None:
    async with opening_site(tmp_path) as site:
        site.load.phase = "trouble"
        await site.redis.run("CONFIG", "SET", "maxmemory", "1")
        await site.wait_for(REFUSED, TAKEN)
        await site.load.wait_for(_AFTER)
        await site.redis.run("CONFIG", "SET", "maxmemory", "0")
        await finish(site, "memory full, noeviction", note_row, (TAKEN, REFUSED))


async def test_no_request_fails_while_keys_of_ours_hold_other_types(tmp_path: Path, note_row: Note) -> None:
    async with opening_site(tmp_path) as site:
        keys = await list_records(site.redis)
        site.load.phase = "trouble"
        # In one go: the gateways go on writing.
        await site.redis.run_all(
            [command for key in keys for command in (("DEL", key), ("RPUSH", key, "not ours"))]
        )
        await site.load.wait_for(_AFTER * 2)
        note_row(TABLE, f"{'other types under our keys':28} {site.describe()}")
        site.assert_calm()
        assert max(site.count(ABSENT)) <= 1


async def test_values_of_another_version_under_our_keys_count_as_absent(
    tmp_path: Path, note_row: Note
) -> None:
    async with opening_site(tmp_path) as site:
        keys = await list_records(site.redis)
        site.load.phase = "trouble"
        await site.redis.run_all([("SET", key, b'{"version": 99}', "KEEPTTL") for key in keys])
        await site.load.wait_for(_AFTER * 2)
        note_row(TABLE, f"{'records of another version':28} {site.describe()}")
        site.assert_calm()
        assert max(site.count(ABSENT)) <= 1


async def list_records(redis: RedisServer) -> list[str]:
    """The keys of everything that was stored as a text."""
    keys = await redis.list_keys()
    types = await redis.run_all([("TYPE", key) for key in keys])
    found = [key for key, kind in zip(keys, types, strict=True) if kind == b"string" and "epoch" not in key]
    assert found
    return found


async def test_no_request_fails_in_a_failover_to_a_replica(tmp_path: Path, note_row: Note) -> None:
    """The address stays the same, as a virtual address or a managed Redis has it."""
    async with opening_site(tmp_path) as site, running_redis() as replica:
        await replica.run("REPLICAOF", "127.0.0.1", site.redis.port)
        await wait_for_replica(replica)
        site.load.phase = "trouble"
        await site.redis.kill()
        await site.proxy.refuse()
        await site.wait_for(AWAY, BACK)
        await site.load.wait_for(_AFTER)
        await replica.run("REPLICAOF", "NO", "ONE")
        site.proxy.lead_to("127.0.0.1", replica.port)
        await site.proxy.start()
        await finish(site, "failover to a replica", note_row)
        assert site.count(LOST) == [0, 0]


async def test_no_request_fails_while_the_primary_has_become_a_replica(
    tmp_path: Path, note_row: Note
) -> None:
    """The connections stay open, and every write is refused, until the address leads to the new primary."""
    async with opening_site(tmp_path) as site, running_redis() as other:
        await other.run("REPLICAOF", "127.0.0.1", site.redis.port)
        await wait_for_replica(other)
        site.load.phase = "trouble"
        await other.run("REPLICAOF", "NO", "ONE")
        await site.redis.run("REPLICAOF", "127.0.0.1", other.port)
        await site.wait_for(AWAY, BACK)
        await site.load.wait_for(_AFTER)
        site.proxy.lead_to("127.0.0.1", other.port)
        await site.proxy.cut()
        await finish(site, "primary became a replica", note_row)


async def wait_for_replica(replica: RedisServer) -> None:
    async with asyncio.timeout(30):
        while True:
            info = await replica.run("INFO", "replication")
            assert isinstance(info, bytes)
            if b"master_link_status:up" in info and b"master_sync_in_progress:0" in info:
                return
            await asyncio.sleep(0.05)
