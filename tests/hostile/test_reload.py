"""SIGHUP and `--watch`, with a gateway as a process."""

import asyncio
import signal
from pathlib import Path

from tests.hostile.process import ProcessGateway, running_process, serving
from tests.toy.gateway import make_settings
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream
from tests.wire_through.raw import ask, render_request

_ADMIN = "admin: {port: 0}\n"
_BODY = b'{"model":"toy-model","messages":[{"role":"user","content":"hi"}]}'


async def shows_headers(gateway: ProcessGateway) -> bool:
    response = await ask(gateway.port, render_request(body=_BODY))
    assert response.status == 200
    return response.own("plan") is not None


async def test_sighup_loads_the_file_again(tmp_path: Path) -> None:
    async with ToyUpstream() as toy, running_process(make_settings(toy), tmp_path) as gateway:
        assert await shows_headers(gateway)
        more = f"{_ADMIN}response_headers: false\nlisten: {{max_body_bytes: 5000}}\n"
        (tmp_path / "gateway.yaml").write_text(make_settings(toy, more=more))
        gateway.send(signal.SIGHUP)
        await wait_until(lambda: "settings reloaded: response_headers" in gateway.log)
        assert "hold from the next start on: listen.max_body_bytes" in gateway.log
        assert not await shows_headers(gateway)
        assert await gateway.stop() == 0
        assert "Traceback" not in gateway.log


async def test_a_bad_file_changes_nothing_and_the_log_says_where_it_is_bad(tmp_path: Path) -> None:
    async with ToyUpstream() as toy, running_process(make_settings(toy), tmp_path) as gateway:
        path = tmp_path / "gateway.yaml"
        before = path.read_text()
        path.write_text(before.replace("upstreams:", "upstreamz:"))
        gateway.send(signal.SIGHUP)
        await wait_until(lambda: "not reloaded" in gateway.log)
        (line,) = (line for line in gateway.log.splitlines() if "not reloaded" in line)
        assert "ERROR gateway.reload" in line
        assert f"{path}:2: unknown key 'upstreamz'; the nearest valid key is 'upstreams'" in line
        assert await shows_headers(gateway)
        path.write_text(before)
        gateway.send(signal.SIGHUP)
        await wait_until(lambda: "nothing has changed" in gateway.log)


async def test_a_watched_file_is_loaded_when_another_one_is_moved_over_it(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        path = tmp_path / "gateway.yaml"
        path.write_text(make_settings(toy, more=_ADMIN))
        async with serving("--config", str(path), "--watch", folder=tmp_path) as gateway:
            assert await shows_headers(gateway)
            (tmp_path / "new").write_text(make_settings(toy, more=f"{_ADMIN}response_headers: false\n"))
            (tmp_path / "new").rename(path)
            await wait_until(lambda: "settings reloaded: response_headers" in gateway.log)
            assert not await shows_headers(gateway)


async def test_a_signal_during_the_start_reloads_after_it(tmp_path: Path) -> None:
    async with ToyUpstream() as toy, running_process(make_settings(toy), tmp_path) as gateway:
        await gateway.stop()
        starting = asyncio.create_task(gateway.start())
        # From here on the signal is blocked until there is a handler for it.
        await wait_until(lambda: gateway.is_running and _blocks_hangup(gateway.pid))
        gateway.send(signal.SIGHUP)
        await starting
        await wait_until(lambda: "settings reloaded: nothing has changed" in gateway.log)
        assert await shows_headers(gateway)


async def test_signals_during_a_drain_and_in_quick_succession_do_no_harm(tmp_path: Path) -> None:
    async with ToyUpstream() as toy, running_process(make_settings(toy), tmp_path) as gateway:
        for _ in range(20):
            gateway.send(signal.SIGHUP)
        assert await shows_headers(gateway)
        gateway.send(signal.SIGTERM)
        for _ in range(20):
            if gateway.is_running:
                gateway.send(signal.SIGHUP)
                await asyncio.sleep(0)
        assert await gateway.wait() == 0
        assert "Traceback" not in gateway.log


def _blocks_hangup(pid: int) -> bool:
    """See proc(5): a mask of signals, the first of which is SIGHUP."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(line.split()[1] for line in lines if line.startswith("SigBlk"))
    return bool(int(mask, 16) & 1)
