"""Workers that are killed under load break what they were serving, and nothing else."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.hostile.process import ProcessGateway, linux_only, running_process
from tests.toy.delivery import Delivery
from tests.toy.gateway import make_settings
from tests.toy.reply import Reply
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream
from tests.workers.load import Load, find_clients
from tests.workers.processes import count_starts, find_workers, is_alive, is_stopped

WORKERS = 4
CLIENTS = 16
KILLS = 5
SECONDS_BETWEEN_KILLS = 2.0
# A replacement takes two seconds of a core to start, and far longer beside other tests.
PATIENCE_SECONDS = 150.0

pytestmark = linux_only


def find_serving(gateway: ProcessGateway) -> list[int]:
    return [process_id for process_id in find_workers(gateway).values() if is_alive(process_id)]


async def kill(gateway: ProcessGateway, number: int) -> set[int]:
    """Kills one that serves, each time another one, and never the last one: starts take long on a machine
    that is busy. It is stopped first; returns the ports of the clients that it serves then.
    """
    await wait_until(lambda: len(find_serving(gateway)) > 1, PATIENCE_SECONDS)
    serving = find_serving(gateway)
    process_id = serving[number % len(serving)]
    # One that is new may serve nobody yet.
    await wait_until(lambda: len(find_clients(process_id, gateway.port)) > 0, PATIENCE_SECONDS)
    os.kill(process_id, signal.SIGSTOP)
    await wait_until(lambda: is_stopped(process_id))
    served = find_clients(process_id, gateway.port)
    os.kill(process_id, signal.SIGKILL)
    return served


async def wait_until_started(gateway: ProcessGateway, count: int) -> None:
    await wait_until(lambda: count_starts(gateway) == count, PATIENCE_SECONDS)


@pytest.mark.timeout(600)
async def test_a_worker_killed_every_two_seconds_breaks_only_what_it_serves(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.reply = lambda _: Reply(text="word " * 40, delta_chars=10)
        toy.delivery = Delivery(between_writes_seconds=0.02)
        settings = make_settings(toy, store=f"disk:{tmp_path}/state")
        async with running_process(settings, tmp_path, "--workers", str(WORKERS)) as gateway:
            load, served = Load(gateway.port), set[int]()
            load.start(CLIENTS)
            for number in range(KILLS):
                await asyncio.sleep(SECONDS_BETWEEN_KILLS)
                # On a busy machine a new worker takes longer to start, and the others serve its clients.
                await wait_until_started(gateway, WORKERS + number)
                served |= await kill(gateway, number)
            await wait_until_started(gateway, WORKERS + KILLS)
            await load.stop()
            assert await gateway.stop() == 0
    broken = [each for each in load.exchanges if not each.is_whole]
    assert {each.port for each in broken} <= served
    # At any time each of four workers serves about a quarter of the clients.
    assert KILLS <= len(broken) <= KILLS * CLIENTS // 2
    assert len(load.exchanges) > 2 * len(broken)
    assert "Traceback" not in gateway.log
