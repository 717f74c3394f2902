"""`refold run` with real clients, set up as if there were no gateway: each ends a task of four windows.

`make test-agents`
"""

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agents.client import KEY, MODEL, Client, Command, Place, bare_environment
from tests.agents.clients import find_client
from tests.agents.trial import make_errand, make_place, require_client
from tests.toy.delivery import Delivery
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
pytestmark = [pytest.mark.agents, pytest.mark.timeout(900), linux_only]

_REPOSITORY = Path(__file__).resolve().parents[2]
_NAMES = ("Claude Code", "Codex", "opencode", "aider", "Qwen Code", "openai SDK, sync")
_STEPS = 54
_PATIENCE_SECONDS = 400


def _find(name: str) -> Client:
    """The SDK's program gets the address by the variable of the SDK, and aider one prompt for each step."""
    client = find_client(name)
    if not client.has_tools:
        return replace(client, turns=_STEPS)
    if name.startswith("openai SDK"):
        return replace(client, commands=lambda place, prompts: _with_variable(client, place, prompts))
    return client


def _with_variable(client: Client, place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    env = {"OPENAI_BASE_URL": place.base_url, "GATEWAY_KEY": KEY, "GATEWAY_MODEL": MODEL}
    return tuple(replace(command, environment=env) for command in client.commands(place, prompts))


@pytest.mark.parametrize("name", _NAMES)
async def test_it_ends_a_task_of_four_windows(name: str, tmp_path: Path) -> None:
    client = _find(name)
    require_client(client)
    errand = make_errand(client, tmp_path / "project" / "notes", _STEPS)
    toy = ToyUpstream(window=client.window, rules=client.rules)
    toy.reply = errand.reply
    async with toy:
        place = make_place(tmp_path, toy.root_url)
        client.prepare(place)
        before = _hash_files(place)
        shown = [await _run(command, place, client) for command in client.commands(place, errand.prompts)]
    (tmp_path / "output.txt").write_text("\n".join(output for _, output in shown), "utf-8")
    told = shown[-1][1][-2_000:]
    assert [status for status, _ in shown] == [0] * len(shown), told
    outputs = "\n".join(output for _, output in shown)
    assert all(errand.goodbye(turn) in outputs for turn in range(client.turns)), told
    assert [seen.refusal for seen in toy.requests if seen.refusal is not None] == []
    lines = re.findall(r"refold: (.*)$", outputs, re.MULTILINE)
    assert len(lines) == len(shown) and len(toy.summaries) >= 2
    compacted = [int(found[1]) for line in lines if (found := re.match(r"(\d+) compactions?, ", line))]
    assert sum(compacted) >= 2, lines
    assert before.items() <= _hash_files(place).items()
    assert _list_processes(place) == []


@pytest.mark.parametrize("name", _NAMES)
async def test_the_keys_that_interrupt_it_leave_nothing_running(name: str, tmp_path: Path) -> None:
    client = _find(name)
    require_client(client)
    errand = make_errand(client, tmp_path / "project" / "notes", _STEPS)
    async with ToyUpstream(window=client.window, rules=client.rules) as toy:
        toy.delivery = Delivery(before_headers_seconds=600.0)
        place = make_place(tmp_path, toy.root_url)
        client.prepare(place)
        command = client.commands(place, errand.prompts)[0]
        async with _started(command, place, client) as process:
            assert process.stdin is not None
            process.stdin.write(_type(command))
            process.stdin.close()
            await wait_until(lambda: len(toy.chats) > 0, 120.0)
            await _interrupt(process)
            assert process.stdout is not None
            assert b"refold: " in await process.stdout.read()
            assert _list_processes(place) == []


def _type(command: Command) -> bytes:
    return "".join(f"{line}\n" for line in command.lines).encode()


async def _interrupt(process: asyncio.subprocess.Process) -> None:
    """As a terminal does it, the whole group. Some clients want it twice."""
    for _ in range(20):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 1.5)
            return


async def _run(command: Command, place: Place, client: Client) -> tuple[int, str]:
    """Exit status and output."""
    async with _started(command, place, client) as process:
        output, _ = await asyncio.wait_for(process.communicate(_type(command)), _PATIENCE_SECONDS)
    return process.returncode or 0, output.decode("utf-8", "replace")


@asynccontextmanager
async def _started(
    command: Command, place: Place, client: Client
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Behind `refold run`, whose settings name the window and no upstream."""
    folder = place.home.parent
    config = folder / "gateway.yaml"
    config.write_text(
        f'store: "disk:{folder}/store"\nmodels:\n  - {{match: {client.model}, context: {client.window}}}\n'
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "run", "--config", str(config), "--", *command.arguments),
        cwd=place.project,
        env=bare_environment(place) | {"PYTHONPATH": str(_REPOSITORY)} | dict(command.environment),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _list_processes(place: Place) -> list[str]:
    """Whatever runs with this home, in whatever session."""
    mark = f"HOME={place.home}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text("utf-8", "replace"))
    return found


def _hash_files(place: Place) -> Mapping[str, str]:
    """Of home and project, by path."""
    paths = [path for folder in (place.home, place.project) for path in folder.rglob("*")]
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
