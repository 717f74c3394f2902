import asyncio
from pathlib import Path

from gateway.admin.merged.live_workers import LiveWorkers


async def test_who_follows_the_list_gets_it_as_it_is_and_after_each_change() -> None:
    workers = LiveWorkers()
    workers.add(Path("a"))
    following = workers.follow()
    assert await anext(following) == (Path("a"),)
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    assert not waiting.done()
    workers.add(Path("b"))
    assert await waiting == (Path("a"), Path("b"))
    workers.remove(Path("a"))
    assert await anext(following) == (Path("b"),)


async def test_changes_while_the_follower_is_busy_are_not_missed() -> None:
    workers = LiveWorkers()
    following = workers.follow()
    assert await anext(following) == ()
    workers.add(Path("a"))
    workers.add(Path("b"))
    workers.remove(Path("a"))
    assert await anext(following) == (Path("b"),)


def test_removing_an_unknown_worker_changes_nothing() -> None:
    workers = LiveWorkers()
    workers.add(Path("a"))
    workers.remove(Path("b"))
    assert workers.sockets == (Path("a"),)
