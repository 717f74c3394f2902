"""`refold serve --workers N` as a group of processes: one port, one life. A worker that ends is replaced, and
breaks what it was serving, and nothing else.
"""

import asyncio
import os
import signal
import socket
import stat
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.system.processes import (
    PATIENCE_SECONDS,
    STREAM,
    Load,
    count_starts,
    find_clients,
    find_workers,
    is_alive,
    is_stopped,
    linux_only,
    post,
    try_post,
    wait_until_gone,
    wait_until_said,
    wait_until_started,
)
from tests.toy.delivery import Delivery
from tests.toy.house import make_settings
from tests.toy.product import Process, serve_process
from tests.toy.reply import Reply
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = [linux_only, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

_ADMIN = "admin: {port: 0}\n"


@dataclass
class Crew:
    """Two workers, which the tests of this module share. Each leaves as many behind."""

    toy: ToyUpstream
    gateway: Process

    @property
    def url(self) -> str:
        return f"{self.gateway.base_url}/chat/completions"

    async def wait_until_whole(self) -> None:
        """Both workers run, and say so in the log."""
        await wait_until(
            lambda: [is_alive(each) for each in find_workers(self.gateway).values()] == [True, True],
            PATIENCE_SECONDS,
        )

    def stream_slowly(self, words: int) -> None:
        self.toy.delivery = Delivery(between_writes_seconds=0.02)
        self.toy.reply = lambda _: Reply(text="word " * words, delta_chars=10)

    async def ask_many(self, count: int) -> list[int]:
        """The statuses of so many requests at once."""
        answers = await asyncio.gather(*(post(self.gateway.base_url) for _ in range(count)))
        return [answer.status for answer in answers]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_crew(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Crew]:
    async with ToyUpstream() as toy, running_workers(toy, tmp_path_factory.mktemp("crew"), 2) as gateway:
        yield Crew(toy, gateway)


@pytest_asyncio.fixture(loop_scope="module")
async def crew(shared_crew: Crew) -> Crew:
    await shared_crew.wait_until_whole()
    shared_crew.toy.reset()
    return shared_crew


@asynccontextmanager
async def running_workers(
    toy: ToyUpstream, folder: Path, workers: int, more: str = ""
) -> AsyncIterator[Process]:
    settings = make_settings(toy, store=f"disk:{folder}/state", more=_ADMIN + more)
    options = ("--workers", str(workers), "--log-level", "debug")
    async with serve_process(settings, folder, *options) as gateway:
        yield gateway


async def test_all_workers_serve_one_port_and_say_who_they_are(crew: Crew) -> None:
    assert await crew.ask_many(40) == [200] * 40
    assert crew.gateway.log.count("base_url http://") == 1
    lines = [line for line in crew.gateway.log.splitlines() if line[:4].isdigit()]
    assert {line.split()[2] for line in lines} == {"supervisor", "worker-1", "worker-2"}


def _list_sockets(processes: Sequence[int]) -> set[Path]:
    """The Unix sockets with a path that these processes listen at, see proc(5)."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    places = {f"socket:[{fields[6]}]": Path(fields[7]) for fields in lines if fields[7:]}
    links = [os.readlink(link) for each in processes for link in Path(f"/proc/{each}/fd").iterdir()]
    return {places[link] for link in links if link in places and places[link].is_absolute()}


async def test_only_the_user_of_the_gateway_reaches_the_sockets_of_its_workers(crew: Crew) -> None:
    """Behind them are the admin pages, without a token."""
    processes = [crew.gateway.pid, *find_workers(crew.gateway).values()]
    sockets = await asyncio.to_thread(_list_sockets, processes)
    assert len(sockets) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in sockets} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in sockets} == {0o700}


async def test_a_killed_worker_breaks_only_what_it_was_serving(crew: Crew) -> None:
    # Ten seconds: on a busy machine it takes a while until the last one has begun.
    crew.stream_slowly(1_000)
    starts = count_starts(crew.gateway)
    async with aiohttp.ClientSession() as client:
        # The system spreads them; hardly ever all to one worker.
        streams = [await client.post(crew.url, json=STREAM) for _ in range(12)]
        first = find_workers(crew.gateway)["worker-1"]
        os.kill(first, signal.SIGSTOP)
        await wait_until(lambda: is_stopped(first), PATIENCE_SECONDS)
        killed = len(find_clients(first, crew.gateway.port))
        os.kill(first, signal.SIGKILL)
        ends = await asyncio.gather(*(stream.read() for stream in streams), return_exceptions=True)
    whole = [isinstance(end, bytes) and end.endswith(b"data: [DONE]\n\n") for end in ends]
    assert whole.count(True) == 12 - killed
    crew.toy.reset()
    assert await crew.ask_many(10) == [200] * 10
    await wait_until_started(crew.gateway, starts + 1)
    assert "has ended: SIGKILL; another one is started" in crew.gateway.log


async def test_a_worker_that_is_told_to_end_finishes_and_is_replaced(crew: Crew) -> None:
    crew.stream_slowly(60)
    starts = count_starts(crew.gateway)
    async with aiohttp.ClientSession() as client:
        streams = [await client.post(crew.url, json=STREAM) for _ in range(4)]
        os.kill(find_workers(crew.gateway)["worker-2"], signal.SIGTERM)
        ends = await asyncio.gather(*(stream.read() for stream in streams))
    assert all(end.endswith(b"data: [DONE]\n\n") for end in ends)
    await wait_until_started(crew.gateway, starts + 1)


async def test_new_clients_do_not_wait_for_a_worker_that_is_told_to_end(crew: Crew) -> None:
    """However long its last request takes."""
    crew.toy.delivery = Delivery(never=True)
    asking = [asyncio.create_task(try_post(crew.gateway.base_url)) for _ in range(12)]
    await wait_until(lambda: len(crew.toy.requests) == 12, PATIENCE_SECONDS)
    crew.toy.delivery = Delivery()
    starts, leaving = count_starts(crew.gateway), find_workers(crew.gateway)["worker-1"]
    said = "leaving everything new to the other workers"
    before = crew.gateway.log.count(said)
    os.kill(leaving, signal.SIGTERM)
    await wait_until(lambda: crew.gateway.log.count(said) > before, PATIENCE_SECONDS)
    await asyncio.sleep(0.5)
    assert await crew.ask_many(20) == [200] * 20
    assert is_alive(leaving)
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await wait_until_started(crew.gateway, starts + 1)


async def test_a_worker_that_is_told_to_end_resets_no_new_clients(crew: Crew) -> None:
    """One may come at the very moment when its port closes. It was a dozen with each end."""
    asked, broken = 0, 0
    has_ended = asyncio.Event()
    head = b"GET /healthz HTTP/1.1\r\nHost: gateway.test\r\nConnection: close\r\n\r\n"

    async def ask_anew() -> None:
        nonlocal asked, broken
        while not has_ended.is_set():
            asked += 1
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", crew.gateway.port)
                writer.write(head)
                broken += b" 200 OK" not in await reader.read()
                writer.close()
            except ConnectionError:
                broken += 1

    clients = [asyncio.create_task(ask_anew()) for _ in range(40)]
    starts, leaving = count_starts(crew.gateway), find_workers(crew.gateway)["worker-1"]
    os.kill(leaving, signal.SIGTERM)
    await wait_until_gone([leaving])
    has_ended.set()
    await asyncio.gather(*clients)
    assert asked > 100
    assert broken <= 1
    await wait_until_started(crew.gateway, starts + 1)


async def test_clients_of_a_worker_that_is_told_to_end_go_on_with_another(crew: Crew) -> None:
    """On connections that are kept."""
    has_ended = asyncio.Event()

    async def ask_until_over() -> Counter[int]:
        statuses = Counter[int]()
        async with aiohttp.ClientSession() as client:
            while not has_ended.is_set():
                statuses[await ask_with(client, crew.url)] += 1
        return statuses

    clients = [asyncio.create_task(ask_until_over()) for _ in range(4)]
    for name in ("worker-1", "worker-2"):
        starts = count_starts(crew.gateway)
        os.kill(find_workers(crew.gateway)[name], signal.SIGTERM)
        await wait_until_started(crew.gateway, starts + 1)
    has_ended.set()
    statuses = await asyncio.gather(*clients)
    assert sum(statuses, Counter()).keys() <= {0, 200}
    assert all(each[200] > each[0] for each in statuses)


async def ask_with(client: aiohttp.ClientSession, url: str) -> int:
    """The status; 0 if the connection was closed at this moment, which SDKs answer with one more try."""
    try:
        async with client.post(url, json=STREAM) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientConnectionError:
        return 0


async def test_a_reload_reaches_all_workers_and_those_that_come_later(crew: Crew) -> None:
    path = crew.gateway.folder / "gateway.yaml"
    before = path.read_text()
    async with ToyUpstream() as other:
        path.write_text(before.replace(crew.toy.base_url, other.base_url) + "cache: {bodies: 9}\n")
        crew.gateway.send(signal.SIGHUP)
        await wait_until_said(crew.gateway, "settings reloaded: upstreams")
        assert crew.gateway.log.count("next start on: cache.bodies") == 1
        # The workers are told at the same moment as the log.
        await wait_until_all_use(crew, other)
        path.write_text("upstreamz: {}\n")
        crew.gateway.send(signal.SIGHUP)
        await wait_until_said(crew.gateway, "settings not reloaded")
        starts = count_starts(crew.gateway)
        os.kill(find_workers(crew.gateway)["worker-1"], signal.SIGKILL)
        await wait_until_started(crew.gateway, starts + 1)
        for _ in range(4):
            before_all = len(other.requests)
            assert await crew.ask_many(8) == [200] * 8
            assert len(other.requests) == before_all + 8
        path.write_text(before)
        crew.gateway.send(signal.SIGHUP)
        await wait_until_all_use(crew, crew.toy)


async def wait_until_all_use(crew: Crew, toy: ToyUpstream) -> None:
    """Returns once requests on several connections at the same time all reach this toy."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            before = len(toy.requests)
            assert await crew.ask_many(8) == [200] * 8
            if len(toy.requests) == before + 8:
                return


async def test_workers_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    async with ToyUpstream() as toy, running_workers(toy, tmp_path, 3) as gateway:
        workers = list(find_workers(gateway).values())
        assert len(workers) == 3
        await gateway.kill()
        await wait_until_gone(workers)
        # Nobody listens any more.
        with socket.create_server(("127.0.0.1", gateway.port)):
            pass


async def test_workers_that_are_killed_under_load_break_only_what_they_serve(tmp_path: Path) -> None:
    kills, clients, workers = 3, 12, 3
    async with ToyUpstream() as toy:
        toy.reply = lambda _: Reply(text="word " * 40, delta_chars=10)
        toy.delivery = Delivery(between_writes_seconds=0.02)
        async with running_workers(toy, tmp_path, workers) as gateway:
            load, served = Load(gateway.port), set[int]()
            load.start(clients)
            for number in range(kills):
                await wait_until_started(gateway, workers + number)
                served |= await kill_one(gateway, number)
            await wait_until_started(gateway, workers + kills)
            await load.stop()
            assert await gateway.stop() == 0
            await wait_until_gone(list(find_workers(gateway).values()))
    broken = [each for each in load.exchanges if not each.is_whole]
    assert broken and {each.port for each in broken} <= served
    assert len(load.exchanges) > 2 * len(broken)
    assert "Traceback" not in gateway.log


async def kill_one(gateway: Process, number: int) -> set[int]:
    """Kills one that serves, each time another one, and never the last one: starts take long on a machine
    that is busy. It is stopped first; returns the ports of the clients that it serves then.
    """

    def find_serving() -> list[int]:
        return [each for each in find_workers(gateway).values() if is_alive(each)]

    await wait_until(lambda: len(find_serving()) > 1, PATIENCE_SECONDS)
    serving = find_serving()
    process_id = serving[number % len(serving)]
    # One that is new may serve nobody yet.
    await wait_until(lambda: len(find_clients(process_id, gateway.port)) > 0, PATIENCE_SECONDS)
    os.kill(process_id, signal.SIGSTOP)
    await wait_until(lambda: is_stopped(process_id))
    served = find_clients(process_id, gateway.port)
    os.kill(process_id, signal.SIGKILL)
    return served


async def test_a_worker_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    """It is stopped, so that it does not hear of the end. It gets ten seconds more than the drain."""
    async with (
        ToyUpstream() as toy,
        running_workers(toy, tmp_path, 2, "drain_seconds: 0\n") as gateway,
    ):
        workers = find_workers(gateway)
        os.kill(workers["worker-1"], signal.SIGSTOP)
        assert await gateway.stop() == 0
        await wait_until_gone(list(workers.values()))
        assert "have not ended in time and are killed: 1" in gateway.log


async def test_a_worker_that_leaves_and_does_not_end_is_killed_and_replaced(tmp_path: Path) -> None:
    """It has as long as one that ends with the gateway."""
    async with (
        ToyUpstream() as toy,
        running_workers(toy, tmp_path, 2, "drain_seconds: 0\n") as gateway,
    ):
        starts, leaving = count_starts(gateway), find_workers(gateway)["worker-1"]
        os.kill(leaving, signal.SIGTERM)
        # It waits for a second before it ends.
        await wait_until_said(gateway, "leaving everything new to the other workers")
        os.kill(leaving, signal.SIGSTOP)
        await wait_until_said(gateway, f"worker-1 (process {leaving}) does not respond and is killed")
        await wait_until_started(gateway, starts + 1)


@pytest.mark.exhaustive  # it counts as hanging after 20 s of silence
async def test_a_worker_that_hangs_is_killed_and_replaced(crew: Crew) -> None:
    starts, hanging = count_starts(crew.gateway), find_workers(crew.gateway)["worker-1"]
    os.kill(hanging, signal.SIGSTOP)
    await wait_until_said(crew.gateway, f"worker-1 (process {hanging}) does not respond and is killed")
    await wait_until_started(crew.gateway, starts + 1)
    assert await crew.ask_many(8) == [200] * 8


def _list_children(process_id: int) -> set[int]:
    return set(map(int, Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()))


async def test_no_client_waits_for_a_worker_that_cannot_be_replaced(crew: Crew) -> None:
    starts, first = count_starts(crew.gateway), find_workers(crew.gateway)["worker-1"]
    others = _list_children(crew.gateway.pid) - {first}

    async def kill_successors() -> None:
        while True:
            for each in _list_children(crew.gateway.pid) - others:
                os.kill(each, signal.SIGKILL)
            await asyncio.sleep(0.02)

    killing = asyncio.create_task(kill_successors())
    await wait_until_said(crew.gateway, "worker-1 cannot be replaced yet: worker-1 ended while it started")
    assert await crew.ask_many(30) == [200] * 30
    assert count_starts(crew.gateway) == starts
    killing.cancel()
    await wait_until_started(crew.gateway, starts + 1)


async def test_a_client_whose_worker_dies_may_ask_again_at_once(crew: Crew) -> None:
    crew.toy.delivery = Delivery(never=True)
    asking = [asyncio.create_task(try_post(crew.gateway.base_url)) for _ in range(4)]
    await wait_until(lambda: len(crew.toy.requests) == 4, PATIENCE_SECONDS)
    crew.toy.delivery = Delivery()
    starts = count_starts(crew.gateway)
    first = find_workers(crew.gateway)["worker-1"]
    killed = len(find_clients(first, crew.gateway.port))
    os.kill(first, signal.SIGKILL)
    await wait_until(lambda: sum(each.done() for each in asking) == killed)
    # Those that come to the place of the worker wait for its successor.
    assert await crew.ask_many(8) == [200] * 8
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await wait_until_started(crew.gateway, starts + 1)
