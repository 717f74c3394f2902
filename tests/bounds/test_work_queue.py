import asyncio
import logging

import pytest

from gateway.bounds.work_queue import WorkQueue


class Worker:
    """Records its jobs once it may go on. An empty job fails."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.may_go = asyncio.Event()

    async def work(self, job: str) -> None:
        await self.may_go.wait()
        if not job:
            raise ValueError("nothing")
        self.done.append(job)


async def test_jobs_are_done_in_order_and_adding_one_does_not_wait() -> None:
    worker = Worker()
    queue = WorkQueue(worker.work, max_bytes=100)
    assert all(queue.put(job, 10) for job in "abc")
    await asyncio.sleep(0)
    assert worker.done == []
    worker.may_go.set()
    await queue.finish()
    assert worker.done == ["a", "b", "c"] and queue.waiting_bytes == 0


async def test_waiting_jobs_are_bounded_and_there_is_room_again_when_they_are_done() -> None:
    worker = Worker()
    queue = WorkQueue(worker.work, max_bytes=100)
    assert [queue.put(job, 40) for job in "abc"] == [True, True, False]
    worker.may_go.set()
    await queue.finish()
    assert queue.put("d", 40)
    await queue.finish()
    assert worker.done == ["a", "b", "d"]


async def test_a_single_job_may_be_larger_than_the_bound() -> None:
    worker = Worker()
    queue = WorkQueue(worker.work, max_bytes=100)
    assert [queue.put(job, 1_000) for job in "ab"] == [True, False]
    worker.may_go.set()
    await queue.finish()
    assert worker.done == ["a"]


async def test_a_job_that_fails_is_dropped_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    worker.may_go.set()
    queue = WorkQueue(worker.work, max_bytes=100)
    with caplog.at_level(logging.ERROR):
        assert all(queue.put(job, 10) for job in ("a", "", "b"))
        await queue.finish()
    assert worker.done == ["a", "b"] and queue.waiting_bytes == 0
    assert "ValueError" in caplog.text


async def test_an_empty_queue_is_finished_at_once() -> None:
    await WorkQueue(Worker().work, max_bytes=100).finish()


async def test_dropped_jobs_are_not_done_and_leave_room() -> None:
    worker = Worker()
    queue = WorkQueue(worker.work, max_bytes=100)
    assert all(queue.put(job, 30) for job in "abc")
    await asyncio.sleep(0)
    queue.drop_where(lambda job: job in "ab")
    assert queue.waiting_bytes == 60
    worker.may_go.set()
    await queue.finish()
    # The first had begun.
    assert worker.done == ["a", "c"] and queue.waiting_bytes == 0
