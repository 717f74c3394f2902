import asyncio
import socket as sockets

from gateway.admin.merged.worker_client import Gone, Silent, WorkerPage, ask, ask_all
from tests.toy.workers import running_toys, socket_paths


async def test_a_page_comes_with_its_status_and_what_it_says_about_itself() -> None:
    async with running_toys(1) as (_, (toy,)):
        toy.pages["/api/x?a=%2F"] = {"b": 1}
        found = await ask(toy.socket, "/api/x?a=%2F")
        missing = await ask(toy.socket, "/api/y", method="POST", body=b"text")
    assert isinstance(found, WorkerPage) and isinstance(missing, WorkerPage)
    assert (found.status, found.parse()) == (200, {"b": 1})
    assert found.headers == {"Content-Type": "application/json"}
    assert missing.status == 404
    assert toy.asked == ["GET /api/x?a=%2F", "POST /api/y"]
    assert toy.bodies == [b"", b"text"]


async def test_a_worker_that_does_not_answer_in_time_is_silent() -> None:
    async with running_toys(1) as (_, (toy,)):
        toy.is_answering.clear()
        assert await ask(toy.socket, "/api/x", seconds=0.05) == Silent()


async def test_a_worker_that_has_ended_is_gone_whether_its_socket_is_left_or_not() -> None:
    with socket_paths() as paths:
        left, never = next(paths), next(paths)
        listener = sockets.socket(sockets.AF_UNIX)
        listener.bind(str(left))
        listener.close()
        assert await ask(left, "/api/x") == Gone()
        assert await ask(never, "/api/x") == Gone()


async def test_a_worker_that_ends_while_it_answers_is_gone() -> None:
    async with running_toys(1) as (_, (toy,)):
        toy.is_answering.clear()
        asking = asyncio.ensure_future(ask(toy.socket, "/api/x", seconds=30))
        async with asyncio.timeout(30):
            while not toy.asked:
                await asyncio.sleep(0.005)
        await toy.crash()
        assert await asking == Gone()


async def test_a_worker_that_runs_but_takes_no_more_connections_is_silent() -> None:
    with socket_paths() as paths:
        path = next(paths)
        with sockets.socket(sockets.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(0)
            answers = [await ask(path, "/api/x", seconds=0.02) for _ in range(3)]
    assert answers == [Silent()] * 3


async def test_all_are_asked_at_once_and_answer_in_their_order() -> None:
    async with running_toys(3) as (live, toys):
        for number, toy in enumerate(toys):
            toy.pages["/api/x"] = number
        await toys[1].crash()
        answers = await ask_all(live.sockets, "/api/x")
    assert [answer.parse() if isinstance(answer, WorkerPage) else answer for answer in answers] == [
        0,
        Gone(),
        2,
    ]


async def test_a_page_without_json_is_none() -> None:
    assert WorkerPage(200, b"<html>", {}).parse() is None
