"""News over pub/sub: to all others, never to oneself, and the generation says what may have been missed."""

import asyncio

from tests.store.redis.servers import TAG, key, two_processes
from tests.toy.redis_server import requires_redis
from tests.toy.running import wait_until

pytestmark = requires_redis


async def test_what_one_process_announces_all_others_hear() -> None:
    async with two_processes() as setting:
        heard_near: list[tuple[str, str]] = []
        heard_far: list[tuple[str, str]] = []
        setting.near.news.subscribe(lambda tag, text: heard_near.append((tag, text)))
        setting.far.news.subscribe(lambda tag, text: heard_far.append((tag, text)))
        setting.near.news.announce(TAG, "pivot 0a 1b")
        setting.far.news.announce(TAG, "marker")
        await wait_until(lambda: bool(heard_near and heard_far))
        assert (heard_near, heard_far) == ([(TAG, "marker")], [(TAG, "pivot 0a 1b")])
        assert setting.near.news.generation == setting.far.news.generation


async def test_news_come_after_what_was_written_before_them() -> None:
    async with two_processes() as setting:
        heard = asyncio.Event()
        setting.far.news.subscribe(lambda tag, text: heard.set())
        setting.near.write(key("pivot", 1), b"made", keep_seconds=60)
        setting.near.news.announce(TAG, "pivot")
        await asyncio.wait_for(heard.wait(), 30)
        assert await setting.far.read(key("pivot", 1)) == b"made"


async def test_a_lost_connection_is_another_generation_and_news_go_on_after_it() -> None:
    async with two_processes() as setting:
        before, heard = setting.near.news.generation, asyncio.Event()
        setting.near.news.subscribe(lambda tag, text: heard.set())
        await setting.proxy.cut()
        await wait_until(lambda: setting.near.news.generation > before)
        async with asyncio.timeout(30):
            while not heard.is_set():
                setting.far.news.announce(TAG, "pivot")
                await asyncio.sleep(0.01)


async def test_a_connection_on_which_nothing_arrives_any_more_is_replaced() -> None:
    async with two_processes() as setting:
        before, opened = setting.near.news.generation, setting.proxy.opened
        setting.proxy.stall()
        await wait_until(lambda: setting.proxy.opened > opened + 1)
        setting.proxy.delay_seconds = 0
        await wait_until(lambda: setting.near.news.generation > before)


async def test_others_learn_that_they_have_missed_what_one_could_not_announce() -> None:
    async with two_processes() as setting:
        far = setting.far.news.generation
        await setting.proxy.refuse()
        await setting.near.write_durably(key("pivot", 1), b"made alone", keep_seconds=60)
        setting.near.news.announce(TAG, "pivot")
        assert setting.far.news.generation == far
        await setting.proxy.start()
        await wait_until(lambda: setting.far.news.generation > far)
        assert await setting.far.read(key("pivot", 1)) == b"made alone"


async def test_a_server_that_came_back_empty_is_another_generation() -> None:
    async with two_processes() as setting:
        near, far = setting.near.news.generation, setting.far.news.generation
        await setting.server.run("FLUSHALL")
        await wait_until(lambda: setting.near.news.generation > near and setting.far.news.generation > far)


async def test_messages_of_another_version_are_passed_over() -> None:
    async with two_processes() as setting:
        heard: list[str] = []
        setting.near.news.subscribe(lambda tag, text: heard.append(text))
        for message in ("", "x", "x unknown y", "x release", "x release key fence", b"\xff \xff"):
            await setting.server.run("PUBLISH", "gateway1:news:0", message)
        setting.far.news.announce(TAG, "known")
        await wait_until(lambda: bool(heard))
        assert heard == ["known"]
