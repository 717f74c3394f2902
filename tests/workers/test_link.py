"""Both sides of a link learn that the other has ended."""

import socket

from gateway.workers.link import Link
from gateway.workers.messages import DrainOrder, ReadyReport, render


async def test_messages_go_both_ways_and_the_end_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    supervisor, worker = await Link().open(ours), await Link().open(theirs)
    supervisor.send(DrainOrder())
    worker.send(ReadyReport(windows=1))
    assert await worker.receive() == render(DrainOrder())
    assert await supervisor.receive() == render(ReadyReport(windows=1))
    worker.close()
    assert await supervisor.receive() is None
    assert await supervisor.receive() is None
    assert await worker.receive() is None
