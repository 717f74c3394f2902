"""A worker is a process with a link: it reports, obeys, and its end is seen from both sides."""

import os
import signal
import sys

import pytest

from gateway.workers.worker_process import Launch, WorkerFailed, describe_end, find_program, launch
from tests.workers.starting import ORDER, start_toy


async def test_a_worker_reports_that_it_serves_and_drains_when_told() -> None:
    worker = await start_toy("serve", 3)
    assert worker.name == "worker-3"
    assert (await worker.wait_ready()).windows == 7
    worker.drain()
    assert await worker.wait() == 0


async def test_a_worker_can_be_hurried_and_killed() -> None:
    worker = await start_toy("serve")
    await worker.wait_ready()
    worker.hurry()
    assert await worker.wait() == 3
    worker.kill()
    other = await start_toy("hang")
    other.kill()
    assert await other.wait() == -signal.SIGKILL


async def test_a_worker_that_cannot_serve_says_why() -> None:
    worker = await start_toy("refuse")
    with pytest.raises(WorkerFailed, match="no such store") as failed:
        await worker.wait_ready()
    assert (failed.value.status, failed.value.message) == (2, "no such store")
    await worker.wait()


async def test_a_worker_that_ends_while_it_starts_is_noticed() -> None:
    worker = await start_toy("die")
    with pytest.raises(WorkerFailed, match="worker-1 ended while it started: exit status 9") as failed:
        await worker.wait_ready()
    assert failed.value.message.startswith("gateway: worker-1")


async def test_a_worker_whose_supervisor_closes_the_link_ends() -> None:
    worker = await start_toy("serve")
    await worker.wait_ready()
    os.kill(worker.process_id, 0)
    worker.close_link()
    assert await worker.wait() == 4


async def test_a_program_that_is_not_there_is_an_error() -> None:
    launching = Launch(number=1, command=("/no/such/program",), descriptors=())
    with pytest.raises(OSError, match="No such file"):
        await launch(launching, ORDER)


def test_the_program_is_started_by_the_same_interpreter() -> None:
    assert find_program()[0] == sys.executable
    assert find_program()[-2:] == ["-m", "gateway"]


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit status 0"), (-9, "SIGKILL"), (-200, "signal 200"), (1, "exit status 1")]
)
def test_an_end_is_described(status: int, words: str) -> None:
    assert describe_end(status) == words
