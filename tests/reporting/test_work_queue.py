"""Work for later: in order, one at a time, bounded, and not stopped by a piece that fails."""

import asyncio
import logging

import pytest

from gateway.reporting.work_queue import WorkQueue


class Worker:
    """Notes what it is given, when it may; fails at nothing (an empty text)."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.may_go = asyncio.Event()

    async def work(self, job: str) -> None:
        await self.may_go.wait()
        if not job:
            raise ValueError("nothing")
        self.done.append(job)


async def test_pieces_are_done_in_order_and_who_hands_them_over_does_not_wait() -> None:
    worker = Worker()
    backlog = WorkQueue(worker.work, max_bytes=100)
    assert all(backlog.put(job, 10) for job in "abc")
    await asyncio.sleep(0)
    assert worker.done == []
    worker.may_go.set()
    await backlog.finish()
    assert worker.done == ["a", "b", "c"] and backlog.waiting_bytes == 0


async def test_what_waits_is_bounded_and_there_is_room_again_when_it_is_done() -> None:
    worker = Worker()
    backlog = WorkQueue(worker.work, max_bytes=100)
    assert [backlog.put(job, 40) for job in "abc"] == [True, True, False]
    worker.may_go.set()
    await backlog.finish()
    assert backlog.put("d", 40)
    await backlog.finish()
    assert worker.done == ["a", "b", "d"]


async def test_a_piece_alone_may_be_larger_than_the_bound() -> None:
    worker = Worker()
    backlog = WorkQueue(worker.work, max_bytes=100)
    assert [backlog.put(job, 1_000) for job in "ab"] == [True, False]
    worker.may_go.set()
    await backlog.finish()
    assert worker.done == ["a"]


async def test_a_piece_that_fails_is_dropped_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    worker.may_go.set()
    backlog = WorkQueue(worker.work, max_bytes=100)
    with caplog.at_level(logging.ERROR):
        assert all(backlog.put(job, 10) for job in ("a", "", "b"))
        await backlog.finish()
    assert worker.done == ["a", "b"] and backlog.waiting_bytes == 0
    assert "ValueError" in caplog.text


async def test_nothing_to_do_is_finished_at_once() -> None:
    await WorkQueue(Worker().work, max_bytes=100).finish()
