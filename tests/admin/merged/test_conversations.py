"""What the admin port asks of which worker, and what it says if one does not answer."""

import asyncio
from typing import Any

import aiohttp
import pytest
from msgspec import to_builtins

from gateway.admin.merged.live_workers import LiveWorkers
from tests.builders.rows import row
from tests.toy.workers import ToyWorker, running_front, running_toys

_LIST = "/api/v1/conversations"
_ONE = f"{_LIST}/c0ffee"
_BUSY = "not all workers answer; try again"


def see(toy: ToyWorker, milliseconds: int, *, has_body: bool = False) -> dict[str, Any]:
    """The worker has answered a turn of the conversation."""
    entry = to_builtins(row("c0ffee", milliseconds))
    toy.pages[_LIST] = {"conversations": [entry]}
    toy.pages[_ONE] = page = {**entry, "body_in_memory": has_body}
    return page


async def ask(live: LiveWorkers, path: str, method: str = "GET", body: bytes = b"") -> tuple[int, Any]:
    async with running_front(live) as front, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{front.port}{path}"
        async with client.request(method, url, data=body) as response:
            return response.status, await response.json()


async def test_the_lists_of_all_workers_become_one() -> None:
    async with running_toys(3) as (live, toys):
        see(toys[0], 1)
        toys[1].pages[_LIST] = {"conversations": [to_builtins(row("d", 500))]}
        see(toys[2], 700)
        await toys[0].crash()
        status, listed = await ask(live, _LIST)
    assert (status, [each["id"] for each in listed["conversations"]]) == (200, ["c0ffee", "d"])


async def test_the_list_of_one_tenant_is_asked_of_each_worker() -> None:
    path = f"{_LIST}?tenant=blue%20team%26"
    async with running_toys(2) as (live, toys):
        toys[0].pages[path] = toys[1].pages[path] = {"conversations": []}
        assert await ask(live, path) == (200, {"conversations": [], "next": None})
        assert [toy.asked for toy in toys] == [[f"GET {path}"]] * 2


async def test_a_conversation_is_shown_as_the_worker_knows_it_that_saw_it_last() -> None:
    async with running_toys(3) as (live, toys):
        see(toys[0], 1)
        newest = see(toys[1], 2)
        assert await ask(live, _ONE) == (200, newest)
        await toys[1].crash()
        assert (await ask(live, _ONE))[0] == 200
        await toys[0].crash()
        status, unknown = await ask(live, _ONE)
    assert (status, unknown["detail"]) == (404, "no such conversation is known")


async def test_the_log_is_asked_of_the_newest_worker_and_then_of_the_others() -> None:
    async with running_toys(3) as (live, toys):
        see(toys[0], 1)
        see(toys[1], 2)
        toys[2].pages[f"{_ONE}/log"] = {"log": ["from the store"]}
        assert await ask(live, f"{_ONE}/log") == (200, {"log": ["from the store"]})
        toys[0].pages[f"{_ONE}/log"] = {"log": ["older"]}
        assert await ask(live, f"{_ONE}/log") == (200, {"log": ["older"]})
        toys[1].pages[f"{_ONE}/log"] = {"log": ["newest"]}
        assert await ask(live, f"{_ONE}/log") == (200, {"log": ["newest"]})
        assert await ask(live, f"{_ONE}/originals") == (404, {"error": "no such thing"})


async def test_an_original_is_found_where_no_worker_has_seen_the_conversation() -> None:
    path = f"{_ONE}/originals/{'ab' * 32}"
    async with running_toys(2) as (live, toys):
        toys[1].pages[path] = {"role": "user"}
        assert await ask(live, path) == (200, {"role": "user"})


async def test_a_compaction_is_asked_of_the_worker_with_the_newest_body() -> None:
    path = f"{_ONE}/compact"
    async with running_toys(3) as (live, toys):
        see(toys[0], 3)
        see(toys[1], 2, has_body=True)
        see(toys[2], 1, has_body=True)
        for at, toy in enumerate(toys):
            toy.pages[path] = {"worker": at}
        assert await ask(live, path, "POST", b'{"instructions": "x"}') == (200, {"worker": 1})
        assert toys[1].bodies[-1] == b'{"instructions": "x"}'
        await toys[1].crash()
        assert await ask(live, path, "POST") == (200, {"worker": 2})
        assert not any("compact" in asked for asked in toys[0].asked)


async def test_a_compaction_of_an_unknown_conversation_is_404() -> None:
    async with running_toys(2) as (live, _):
        assert (await ask(live, f"{_ONE}/compact", "POST"))[0] == 404


async def test_a_compaction_with_a_body_that_is_too_large_is_400() -> None:
    async with running_toys(1) as (live, (toy,)):
        see(toy, 1, has_body=True)
        status, said = await ask(live, f"{_ONE}/compact", "POST", b"x" * 600_000)
    assert (status, said["detail"]) == (400, "body: too large")


async def test_a_worker_that_hangs_is_left_out() -> None:
    async with running_toys(2) as (live, toys):
        toys[0].is_answering.clear()
        known = see(toys[1], 1)
        pages = [ask(live, _LIST), ask(live, _ONE)]
        (list_status, listed), (status, shown) = await asyncio.gather(*pages)
    assert (list_status, len(listed["conversations"])) == (200, 1)
    assert (status, shown) == (200, known)


@pytest.mark.parametrize("how_many", [0, 1])
async def test_unknown_is_said_only_if_every_worker_has_said_so(how_many: int) -> None:
    async with running_toys(how_many) as (live, toys):
        for toy in toys:
            toy.is_answering.clear()
        paths = [_LIST, _ONE, f"{_ONE}/log", f"{_ONE}/originals"]
        found = await asyncio.gather(
            *(ask(live, path) for path in paths), ask(live, f"{_ONE}/compact", "POST")
        )
    assert [(status, said["detail"]) for status, said in found] == [(503, _BUSY)] * 5


async def test_a_name_that_no_conversation_has_reaches_no_worker() -> None:
    async with running_toys(1) as (live, (toy,)):
        assert (await ask(live, f"{_LIST}/a%2F..%2Fb%3Fc"))[0] == 404
        assert toy.asked == []
