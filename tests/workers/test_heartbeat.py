"""A worker counts as hanging only after many periods without a word, in which the supervisor itself ran."""

import asyncio
from collections.abc import Iterator

import pytest

from gateway.workers.heartbeat import beat, wait_silence

SILENCE = "silence"
END = "end"


class Line:
    """What a worker sends, in this order; then nothing more."""

    def __init__(self, *messages: str) -> None:
        self._messages: Iterator[str] = iter(messages)
        self.is_used_up = asyncio.Event()

    async def receive(self) -> bytes | None:
        message = next(self._messages, None)
        if message is None:
            self.is_used_up.set()
        if message is None or message == SILENCE:
            await asyncio.Event().wait()
        return None if message == END else b"alive"


async def test_a_worker_that_says_nothing_more_is_noticed() -> None:
    await asyncio.wait_for(wait_silence(Line("alive", "alive").receive, 0.001), 60)


async def test_a_word_from_time_to_time_is_enough() -> None:
    line = Line(*([SILENCE] * 11 + ["alive"]) * 5)
    waiting = asyncio.create_task(wait_silence(line.receive, 0.001))
    await asyncio.wait_for(line.is_used_up.wait(), 60)
    assert not waiting.done()
    await asyncio.wait_for(waiting, 60)


async def test_a_worker_that_ends_is_left_alone() -> None:
    waiting = asyncio.create_task(wait_silence(Line(END).receive, 0.001))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 0.1)


async def test_a_worker_says_at_once_that_it_lives() -> None:
    reported = asyncio.Event()
    beating = asyncio.create_task(beat(reported.set))
    await asyncio.wait_for(reported.wait(), 60)
    beating.cancel()
