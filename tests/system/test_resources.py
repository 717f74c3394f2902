"""Disk and memory: what is not ours stays as it is, a full disk costs no client an answer, and a process
stays within the memory that its settings say.
"""

import asyncio
import io
import json
import os
import resource
import shutil
import stat
from pathlib import Path

import aiohttp
import brotli
import pytest
from aiohttp import web

from tests.system.processes import linux_only, post, read_peak_bytes
from tests.toy.agent import Shape, make_session
from tests.toy.house import make_settings
from tests.toy.product import run_command, serve_process
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

pytestmark = pytest.mark.timeout(400)

SHAPE = Shape(max_tokens=1_000)
# Root may write everywhere, unless it gives up that right.
_AS_OTHERS = (
    ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
    if os.geteuid() == 0
    else ()
)
_MIB = 1 << 20


def serve_in_vain(store: str, cwd: Path, before: tuple[str, ...] = ()) -> str:
    """The last line of a gateway that must not start."""
    config = cwd.parent / "gateway.yaml"
    config.write_text(f'store: "{store}"\nadmin: {{port: 0}}\n')
    done = run_command("serve", "--port", "0", "--config", str(config), cwd=cwd, before=before)
    assert done.status == 1 and "Traceback" not in done.err, done.err
    return done.err.splitlines()[-1]


def describe(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.stat().st_mode, path.stat().st_ino, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *sorted(folder.rglob("*"))]
    }


def test_a_folder_of_other_files_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "thesis").mkdir(parents=True)
    (home / "thesis" / "chapter.txt").write_text("precious")
    (home / "cache.db").write_bytes(b"not a database")
    before = describe(home)
    line = serve_in_vain("disk:.", home)
    assert str(home) in line and "'thesis'" in line and "nothing in it was changed" in line
    assert describe(home) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gateway.yaml", "home"]


def test_an_existing_file_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "state").write_text("precious")
    before = describe(home)
    assert str(home / "state") in serve_in_vain("disk:state", home)
    assert describe(home) == before


@pytest.mark.skipif(
    bool(_AS_OTHERS) and shutil.which("setpriv") is None, reason="root may write everywhere, without setpriv"
)
@pytest.mark.parametrize("store", ["disk:.", "disk:state"])
def test_a_folder_that_is_not_writable_is_an_error_at_start(tmp_path: Path, store: str) -> None:
    mount = tmp_path / "mount"
    mount.mkdir(mode=0o500)
    line = serve_in_vain(store, mount, _AS_OTHERS)
    mount.chmod(0o700)
    assert f"cannot be used by user {os.geteuid()}: Permission denied" in line
    assert str(mount) in line and "chown" in line and "memory:" in line
    assert list(mount.iterdir()) == []


@linux_only
async def test_a_disk_that_fills_up_later_costs_no_answer_and_a_line_for_each_store(tmp_path: Path) -> None:
    session = make_session(40, 11, "one_user", 700)
    async with ToyUpstream(window=16_000, bias=1.1) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path / 'state'}")
        async with serve_process(settings, tmp_path) as gateway:
            first = await run_session(session, gateway.base_url, toy, SHAPE, Pace(last=5))
            # The log of the process is a file, too: it stays far below this.
            _limit_files(gateway.pid, 1 << 16)
            rest = await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=5, last=40))
            assert first.failed == rest.failed == []
            # One for each store that has met the end of the disk by now.
            assert 1 <= gateway.log.count("ERROR gateway.store") <= 2, gateway.log
            _limit_files(gateway.pid, resource.RLIM_INFINITY)
            assert await gateway.stop() == 0
            assert "operations could not be written" not in gateway.log


def _limit_files(process_id: int, size: int) -> None:
    resource.prlimit(process_id, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def test_state_and_originals_are_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    async with (
        ToyUpstream(window=16_000, bias=1.1) as toy,
        serve_process(make_settings(toy, store=f"disk:{state}"), tmp_path) as gateway,
    ):
        run = await run_session(make_session(20, 3), gateway.base_url, toy, SHAPE)
        assert run.failed == [] and toy.summaries
        await asyncio.to_thread(_check_private, state)


def _check_private(state: Path) -> None:
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in [state, *state.rglob("*")]}
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}
    assert len(found) > 6


_SMALL = """
listen: {max_body_bytes: 4194304}
bounds: {bodies_bytes: 16777216}
cache: {bodies_bytes: 4194304, facts_bytes: 1048576, records_bytes: 1048576, named_bytes: 3145728,
  activity_bytes: 1048576}
"""
# What the bench of hostile memory computes of these settings. Without a budget the bodies below take a
# gigabyte.
_MOST_BYTES = 434 * _MIB


@linux_only
async def test_a_process_stays_within_the_memory_that_its_settings_say(tmp_path: Path) -> None:
    """Sixty bodies of 4 MB and sixty that unpack to 3 MB, each of which waits for its response."""

    async def answer_slowly(request: web.BaseRequest) -> web.Response:
        await request.content.read()
        await asyncio.sleep(0.1)
        return web.json_response({})

    text = "word " * 780_000
    large = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": f"{text}\U0001f600"}]}
    ).encode()
    packed = brotli.compress(bytes(3 * _MIB), quality=5)
    runner = web.ServerRunner(web.Server(answer_slowly, max_field_size=1 << 16), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    settings = (
        f'store: "memory:"\nupstreams: {{default: {{base_url: "{upstream}", discover: false}}}}\n'
        f'models: [{{match: "m", context: 4000000}}]\n{_SMALL}'
    )

    async def send(client: aiohttp.ClientSession, url: str, body: bytes, encoding: str) -> tuple[int, str]:
        headers = {"Content-Encoding": encoding} if encoding else {}
        async with client.post(url, data=io.BytesIO(body), headers=headers) as response:
            await response.read()
            return response.status, response.headers.get("Retry-After", "")

    try:
        async with serve_process(settings, tmp_path) as gateway:
            url, headers = f"{gateway.base_url}/chat/completions", {"Content-Type": "application/json"}
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(headers=headers, connector=connector) as client:
                bodies = [(large, ""), (packed, "br")] * 60
                got = await asyncio.gather(*(send(client, url, *each) for each in bodies))
            peak_bytes = read_peak_bytes(gateway.pid)
    finally:
        await runner.cleanup()
    assert {status for status, _ in got} <= {200, 503}
    assert {after for status, after in got if status == 503} <= {"1"}
    assert peak_bytes < _MOST_BYTES


@linux_only
async def test_small_requests_do_not_load_the_tokenizer_and_one_near_its_window_does(tmp_path: Path) -> None:
    """Its table takes 70 MB of each process."""

    def body(sentences: int) -> bytes:
        message = {"role": "user", "content": "Go on with the plan. " * sentences}
        return json.dumps({"model": "toy-model", "messages": [message]}).encode()

    async with (
        ToyUpstream(window=16_000, bias=1.1) as toy,
        serve_process(make_settings(toy), tmp_path) as gateway,
    ):
        # Larger than what is too small to learn from, and each of them answered with usage.
        for _ in range(4):
            assert (await post(gateway.base_url, body(400))).status == 200
        before = read_peak_bytes(gateway.pid)
        assert before < 110 * _MIB
        assert (await post(gateway.base_url, body(1_600))).status == 200
        assert read_peak_bytes(gateway.pid) > before + 30 * _MIB
