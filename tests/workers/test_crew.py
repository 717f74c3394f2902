"""A crew keeps its size: who dies is replaced, and who cannot start is not tried again and again at once."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from gateway.workers.crew import Crew, find_pause
from gateway.workers.worker_process import WorkerFailed, WorkerProcess
from tests.toy.running import wait_until
from tests.workers.starting import start_toy


class Slots:
    """What was started for each slot, and what ended. Behaviours: of each process in turn, then the last."""

    def __init__(self, *behaviours: str) -> None:
        self._behaviours = behaviours
        self._begun = 0
        self.started: list[WorkerProcess] = []
        self.ended: list[int] = []
        self.replacements = 0

    async def start(self, slot: int) -> WorkerProcess:
        behaviour = self._behaviours[min(self._begun, len(self._behaviours) - 1)]
        self._begun += 1
        worker = await start_toy(behaviour, slot + 1)
        self.started.append(worker)
        return worker

    def note_end(self, slot: int) -> None:
        self.ended.append(slot)

    def note_replacement(self) -> None:
        self.replacements += 1


@asynccontextmanager
async def running(size: int, slots: Slots) -> AsyncIterator[Crew]:
    crew = Crew(size, slots.start, slots.note_end, slots.note_replacement, lambda failures: 0.0)
    await crew.open()
    try:
        yield crew
    finally:
        await crew.close(30)


def are_gone(workers: Sequence[WorkerProcess]) -> bool:
    return not any(is_running(worker.process_id) for worker in workers)


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_worker_that_is_killed_is_replaced_at_once(caplog: pytest.LogCaptureFixture) -> None:
    slots = Slots("serve")
    async with running(2, slots) as crew:
        os.kill(slots.started[0].process_id, signal.SIGKILL)
        await wait_until(lambda: len(slots.started) == 3)
        assert slots.started[2].name == slots.started[0].name
        assert slots.ended == [int(slots.started[0].name[-1]) - 1]
        assert slots.replacements == 1
        assert not crew.failure.done()
    assert are_gone(slots.started)
    assert "has ended: SIGKILL; another one is started" in caplog.text


async def test_a_worker_that_hangs_is_killed_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    slots = Slots("deaf", "serve")

    async def wait_silence(worker: WorkerProcess) -> None:
        if worker is not slots.started[0]:
            await asyncio.Event().wait()

    crew = Crew(1, slots.start, slots.note_end, slots.note_replacement, wait_silence=wait_silence)
    await crew.open()
    await wait_until(lambda: len(slots.started) == 2, 60)
    await crew.close(30)
    assert "worker-1 (process" in caplog.text and "does not respond and is killed" in caplog.text


async def test_none_is_replaced_while_the_crew_drains() -> None:
    slots = Slots("serve")
    async with running(2, slots) as crew:
        crew.drain()
        await wait_until(lambda: len(slots.ended) == 2)
    assert len(slots.started) == 2


async def test_if_one_cannot_start_the_others_do_not_stay() -> None:
    slots = Slots("serve", "refuse", "serve")
    with pytest.raises(WorkerFailed, match="no such store"):
        async with running(3, slots):
            pass
    await wait_until(lambda: are_gone(slots.started))


async def test_if_none_can_be_replaced_the_crew_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    slots = Slots("brief", "die")
    async with running(1, slots) as crew:
        failed = await asyncio.wait_for(crew.failure, 60)
        assert "exit status 9" in str(failed)
    assert "worker-1 cannot be replaced yet" in caplog.text


async def test_a_worker_that_does_not_end_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    slots = Slots("deaf")
    crew = Crew(1, slots.start, slots.note_end, slots.note_replacement)
    await crew.open()
    await crew.close(0.05)
    assert are_gone(slots.started)
    assert "have not ended in time and are killed: 1" in caplog.text


def test_the_pause_grows_with_the_failures_and_is_bounded() -> None:
    assert [find_pause(failures) for failures in range(5)] == [0.0, 0.0, 0.5, 1.0, 2.0]
    assert find_pause(50) == 30.0
