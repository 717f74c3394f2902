"""Processes that are killed or stopped: nothing that was promised is lost, and nothing comes back."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.store.address import make_store
from gateway.store.interface import Lookup
from tests.store.backends import KINDS, TAG, Place

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=KINDS[2:])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("empty_redis").patient_url)
    return f"disk:{tmp_path / 'store'}"


@asynccontextmanager
async def child(url: str, role: str, name: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "tests.store.child", url, role, name]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stdin=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_lines(process: Process, count: int) -> list[str]:
    assert process.stdout is not None
    return [(await process.stdout.readline()).decode().strip() for _ in range(count)]


async def kill(process: Process) -> list[str]:
    """What it had said by then. The last line may be torn."""
    assert process.stdout is not None
    process.kill()
    rest = (await process.stdout.read()).decode()
    return rest.rpartition("\n")[0].split("\n") if "\n" in rest else []


async def run_until_killed(url: str, role: str, counts: Sequence[int]) -> list[str]:
    """A process for each number: it is killed when it has said so many lines, and another takes its place."""

    async def run(at: int, count: int) -> list[str]:
        said: list[str] = []
        for life in range(2):
            async with child(url, role, f"{at}.{life}") as process:
                said += (await read_lines(process, count))[1:]
                said += await kill(process)
        return said

    return [
        line for lines in await asyncio.gather(*(run(*each) for each in enumerate(counts))) for line in lines
    ]


async def list_pivots(url: str) -> dict[str, bytes]:
    store = make_store(url)
    await store.open()
    records = await store.list("pivot", TAG, wait=30)
    await store.close()
    return {record.key.name: record.value for record in records}


async def test_no_durable_write_is_lost_by_kills_of_processes_that_share_a_store(url: str) -> None:
    said = await run_until_killed(url, "write", [20, 100, 300])
    stored = await list_pivots(url)
    assert len(said) > 800
    assert set(said) <= set(stored)
    assert all(value == name.encode() * 200 for name, value in stored.items())


async def test_of_processes_that_race_for_leases_no_two_do_the_same_work(url: str) -> None:
    said = await run_until_killed(url, "work", [6, 11, 17, 23])
    stored = await list_pivots(url)
    names = [line.partition(" ")[0] for line in said]
    assert len(names) > 100
    assert len(names) == len(set(names))
    assert all(stored[line.partition(" ")[0]].decode() == line.partition(" ")[2] for line in said)


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_process_that_is_stopped_while_another_purges_brings_nothing_back(
    url: str, tmp_path: Path, group: str | None
) -> None:
    place = Place("disk" if url.startswith("disk:") else "redis", tmp_path, url)
    async with place.process() as one, child(url, "wait", "queued") as other:
        assert await read_lines(other, 2) == ["open", "queued"]
        other.send_signal(signal.SIGSTOP)
        await one.keep("there", group="g")
        await one.store.delete(TAG, group)
        other.send_signal(signal.SIGCONT)
        assert other.stdin is not None
        other.stdin.write(b"\n")
        assert await read_lines(other, 1) == ["written"]
        found = await one.store.get(TAG, [Lookup("head", ["queued", "there"])], wait=10)
        assert found == [None]
        other.stdin.write(b"\n")
        await other.wait()
        assert await one.store.get(TAG, [Lookup("head", ["queued"])], wait=10) == [None]


async def test_four_processes_that_start_at_once_on_a_new_folder_all_open_it(tmp_path: Path) -> None:
    for round_ in range(2):
        url = f"disk:{tmp_path / f'store{round_}'}"
        async with AsyncExitStack() as exits:
            children = await asyncio.gather(
                *(exits.enter_async_context(child(url, "write", str(at))) for at in range(4))
            )
            for process in children:
                assert (await read_lines(process, 1)) == ["open"]
            said = [name for process in children for name in await kill(process)]
        assert set(said) <= set(await list_pivots(url))
