"""`refold serve --workers N` as a group of processes: one port, one life."""

import asyncio
import os
import signal
import socket
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.hostile.process import ProcessGateway, linux_only, run_command, running_process, serving
from tests.toy.delivery import Delivery
from tests.toy.gateway import make_settings
from tests.toy.reply import Reply
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream
from tests.workers.processes import count_starts, find_admin_port, find_workers, wait_until_gone

BODY = {"model": "toy-model", "messages": [{"role": "user", "content": "Hi."}]}
STREAM = {**BODY, "stream": True}

pytestmark = [linux_only, pytest.mark.timeout(400)]


async def ask(port: int) -> int:
    """On a connection of its own."""
    async with aiohttp.ClientSession() as client:
        return await ask_with(client, port)


async def ask_with(client: aiohttp.ClientSession, port: int) -> int:
    """The status; 0 if the connection was closed, which SDKs answer with one more try."""
    try:
        async with client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientConnectionError:
        return 0


async def wait_until_all_use(gateway: ProcessGateway, toy: ToyUpstream) -> None:
    """Returns once requests on several connections at the same time all reach this toy."""
    async with asyncio.timeout(30):
        while True:
            before = len(toy.requests)
            await asyncio.gather(*(ask(gateway.port) for _ in range(8)))
            if len(toy.requests) == before + 8:
                return


async def test_all_workers_serve_one_port_and_the_start_screen_comes_once(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        settings = make_settings(toy)
        (tmp_path / "gateway.yaml").write_text(f"{settings}\nadmin: {{port: 0}}\n")
        async with serving("--config", "gateway.yaml", "--workers", "3", folder=tmp_path) as gateway:
            assert len(find_workers(gateway)) == 3
            assert await asyncio.gather(*(ask(gateway.port) for _ in range(12))) == [200] * 12
            assert gateway.log.count("base_url http://") == 1
            assert await gateway.stop() == 0
            await wait_until_gone(list(find_workers(gateway).values()))


async def test_a_killed_worker_breaks_only_what_it_was_serving(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.delivery = Delivery(between_writes_seconds=0.02)
        toy.reply = lambda _: Reply(text="word " * 100, delta_chars=10)
        settings = make_settings(toy, more="admin: {port: 0}\n")
        (tmp_path / "gateway.yaml").write_text(settings)
        async with (
            serving("--config", "gateway.yaml", "--workers", "2", folder=tmp_path) as gateway,
            aiohttp.ClientSession() as client,
        ):
            url = f"{gateway.base_url}/chat/completions"
            streams = [await client.post(url, json=STREAM) for _ in range(6)]
            os.kill(find_workers(gateway)["worker-1"], signal.SIGKILL)
            ends = await asyncio.gather(*(stream.read() for stream in streams), return_exceptions=True)
            # Six connections, three to each worker.
            whole = [isinstance(end, bytes) and end.endswith(b"data: [DONE]\n\n") for end in ends]
            assert whole.count(True) == 3
            toy.delivery = Delivery()
            assert await asyncio.gather(*(ask(gateway.port) for _ in range(10))) == [200] * 10
            await wait_until(lambda: count_starts(gateway) == 3, 150)
            assert "SIGKILL" in gateway.log


async def test_workers_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        (tmp_path / "gateway.yaml").write_text(make_settings(toy, more="admin: {port: 0}\n"))
        async with serving("--config", "gateway.yaml", "--workers", "3", folder=tmp_path) as gateway:
            workers = list(find_workers(gateway).values())
            await gateway.kill()
            await wait_until_gone(workers)
            # Nobody listens any more.
            with socket.create_server(("127.0.0.1", gateway.port)):
                pass


async def test_a_worker_that_is_told_to_end_finishes_and_is_replaced(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.delivery = Delivery(between_writes_seconds=0.02)
        toy.reply = lambda _: Reply(text="word " * 60, delta_chars=10)
        (tmp_path / "gateway.yaml").write_text(make_settings(toy, more="admin: {port: 0}\n"))
        async with (
            serving("--config", "gateway.yaml", "--workers", "2", folder=tmp_path) as gateway,
            aiohttp.ClientSession() as client,
        ):
            url = f"{gateway.base_url}/chat/completions"
            streams = [await client.post(url, json=STREAM) for _ in range(4)]
            os.kill(find_workers(gateway)["worker-2"], signal.SIGTERM)
            ends = await asyncio.gather(*(stream.read() for stream in streams))
            assert all(end.endswith(b"data: [DONE]\n\n") for end in ends)
            await wait_until(lambda: count_starts(gateway) == 3, 150)
            assert await gateway.stop() == 0


async def ask_until(has_ended: asyncio.Event, port: int) -> Counter[int]:
    """How often each status came, on connections that are kept."""
    statuses = Counter[int]()
    async with aiohttp.ClientSession() as client:
        while not has_ended.is_set():
            statuses[await ask_with(client, port)] += 1
    return statuses


async def test_clients_of_a_worker_that_is_told_to_end_go_on_with_another(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        (tmp_path / "gateway.yaml").write_text(make_settings(toy, more="admin: {port: 0}\n"))
        async with serving("--config", "gateway.yaml", "--workers", "2", folder=tmp_path) as gateway:
            has_ended = asyncio.Event()
            clients = [asyncio.create_task(ask_until(has_ended, gateway.port)) for _ in range(4)]
            for number, name in enumerate(("worker-1", "worker-2"), start=1):
                os.kill(find_workers(gateway)[name], signal.SIGTERM)
                await wait_until(lambda number=number: count_starts(gateway) == 2 + number, 150)  # type: ignore[misc]
            has_ended.set()
            statuses = await asyncio.gather(*clients)
            assert sum(statuses, Counter()).keys() <= {0, 200}
            assert all(each[200] > 0 for each in statuses)
            assert await gateway.stop() == 0


async def test_a_port_that_is_taken_is_said_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ("serve", "--workers", "2", "--port", port)
        failed = await asyncio.to_thread(run_command, *command, cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr.count("is in use, perhaps by another gateway") == 1
    assert "Traceback" not in failed.stderr


async def test_settings_that_are_wrong_are_said_once(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="upstreamz") as failed:
        async with running_process("upstreamz: {}\n", tmp_path, "--workers", "2"):
            pass
    assert str(failed.value).count("upstreamz") == 1


async def test_one_admin_port_answers_for_all(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        (tmp_path / "gateway.yaml").write_text(make_settings(toy, more="admin: {port: 0}\n"))
        async with serving("--config", "gateway.yaml", "--workers", "2", folder=tmp_path) as gateway:
            await asyncio.gather(*(ask(gateway.port) for _ in range(6)))
            url = f"http://127.0.0.1:{find_admin_port(gateway)}/metrics"
            async with aiohttp.ClientSession() as client, client.get(url) as answer:
                metrics = await answer.text()
            assert "gateway_workers 2.0" in metrics


async def test_a_reload_reaches_all_workers_and_those_that_come_later(tmp_path: Path) -> None:
    async with ToyUpstream() as first, ToyUpstream() as second:
        config = tmp_path / "gateway.yaml"
        config.write_text(make_settings(first, more="admin: {port: 0}\n"))
        async with serving("--config", "gateway.yaml", "--workers", "2", folder=tmp_path) as gateway:
            config.write_text(make_settings(second, more="admin: {port: 0}\ncache: {bodies: 9}\n"))
            gateway.send(signal.SIGHUP)
            await wait_until(lambda: "settings reloaded: upstreams" in gateway.log)
            assert gateway.log.count("next start on: cache.bodies") == 1
            # The workers are told at the same moment as the log.
            await wait_until_all_use(gateway, second)
            config.write_text("upstreamz: {}\n")
            gateway.send(signal.SIGHUP)
            await wait_until(lambda: "settings not reloaded" in gateway.log)
            os.kill(find_workers(gateway)["worker-1"], signal.SIGKILL)
            await wait_until(lambda: count_starts(gateway) == 3, 150)
            before = len(second.requests)
            assert await asyncio.gather(*(ask(gateway.port) for _ in range(8))) == [200] * 8
            assert len(second.requests) == before + 8


async def test_every_line_of_the_log_names_its_process(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        (tmp_path / "gateway.yaml").write_text(make_settings(toy, more="admin: {port: 0}\n"))
        options = ("--config", "gateway.yaml", "--workers", "2", "--log-level", "debug")
        async with serving(*options, folder=tmp_path) as gateway:
            await asyncio.gather(*(ask(gateway.port) for _ in range(40)))
            await gateway.stop()
            lines = [line for line in gateway.log.splitlines() if line[:4].isdigit()]
            names = {line.split()[2] for line in lines}
            assert names == {"supervisor", "worker-1", "worker-2"}
