"""What the admin port asks of which worker, and what it says if one does not answer."""

import asyncio
import io
import json
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.activity.rows import Row
from gateway.admin.answers import ConversationList, ConversationPage, TextsAllowed
from gateway.admin.merged import conversations
from gateway.admin.merged.live_workers import LiveWorkers
from tests.builders.rows import row
from tests.toy.workers import ToyWorker, running_front, running_toys

_LIST = "/api/v1/conversations"
_ONE = f"{_LIST}/c0ffee"
_ALL = f"{_LIST}?limit=500"
_TOO_LARGE = b"x" * 600_000


def list_rows(*rows: Row, cursor: str | None = None) -> ConversationList:
    return ConversationList(conversations=list(rows), next=cursor)


def see(toy: ToyWorker, milliseconds: int, *, has_body: bool = False) -> Any:
    """The worker has answered a turn of the conversation. The page that it shows of it."""
    listed = row("c0ffee", milliseconds)
    toy.pages[_LIST] = toy.pages[_ALL] = list_rows(listed)
    toy.pages[_ONE] = page = ConversationPage(
        **msgspec.structs.asdict(listed),
        messages=2,
        growth_tokens=0,
        prune_batches=0,
        body_in_memory=has_body,
        lines=None,
        texts=TextsAllowed(allowed=True, reason=None),
    )
    return json.loads(msgspec.json.encode(page))


async def ask(live: LiveWorkers, path: str, method: str = "GET", body: bytes = b"") -> tuple[int, Any]:
    async with running_front(live) as front, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{front.port}{path}"
        async with client.request(method, url, data=io.BytesIO(body)) as response:
            is_problem = response.content_type == "application/problem+json"
            assert is_problem == (response.status >= 400)
            return response.status, await response.json(content_type=None)


async def ask_for_status(live: LiveWorkers, path: str, method: str = "GET", body: bytes = b"") -> int:
    status, said = await ask(live, path, method, body)
    assert status < 400 or said["status"] == status
    return status


async def test_the_lists_of_all_workers_become_one() -> None:
    async with running_toys(3) as (live, toys):
        see(toys[0], 1)
        toys[1].pages[_LIST] = list_rows(row("d", 500))
        see(toys[2], 700)
        await toys[0].crash()
        status, listed = await ask(live, _LIST)
    assert (status, [each["id"] for each in listed["conversations"]]) == (200, ["c0ffee", "d"])


async def test_the_list_of_one_tenant_is_asked_of_each_worker() -> None:
    path = f"{_LIST}?tenant=blue%20team%26"
    async with running_toys(2) as (live, toys):
        toys[0].pages[path] = toys[1].pages[path] = list_rows()
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
        assert await ask_for_status(live, _ONE) == 404


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
        assert await ask_for_status(live, f"{_ONE}/originals") == 404


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
        status, said = await ask(live, f"{_ONE}/compact", "POST", _TOO_LARGE)
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
            *(ask_for_status(live, path) for path in paths), ask_for_status(live, f"{_ONE}/compact", "POST")
        )
    assert found == [503] * 5


async def test_a_name_in_the_path_reaches_the_worker_as_it_is() -> None:
    async with running_toys(1) as (live, (toy,)):
        assert await ask_for_status(live, f"{_LIST}/a%2F..%2Fb%3Fc") == 404
        assert all(asked == f"GET {_LIST}/a%2F..%2Fb%3Fc" for asked in toy.asked)


async def test_the_unversioned_paths_are_the_same_pages() -> None:
    path = _ONE.replace("/v1", "")
    async with running_toys(1) as (live, (toy,)):
        known = see(toy, 1)
        toy.pages[f"{path}/log"] = {"log": []}
        assert await ask(live, path) == (200, known)
        assert await ask(live, f"{path}/log") == (200, {"log": []})


async def test_pages_of_the_list_follow_each_other_over_all_workers() -> None:
    """What one worker holds back may be newer than what another one shows."""
    path = f"{_LIST}?limit=2"
    async with running_toys(2) as (live, toys):
        newest, *_, oldest = rows = [row(name, 900 - at) for at, name in enumerate("abcdef")]
        toys[0].pages[path] = list_rows(*rows[:2], cursor="more")
        toys[1].pages[path] = list_rows(*rows[3:5], cursor="more")
        status, page = await ask(live, path)
    assert status == 200 and page["next"] is not None
    assert [each["id"] for each in page["conversations"]] == ["a", "b"]
    assert newest.id == "a" and oldest.id == "f"


async def test_a_worker_refuses_a_query_and_so_does_the_port() -> None:
    async with running_toys(1) as (live, _):
        for query in ("limit=0", "limit=501", "limit=x", "q=" + "x" * 300, "cursor=!"):
            assert await ask_for_status(live, f"{_LIST}?{query}") in (400, 404)


async def test_totals_are_summed_after_the_rows_of_all_workers_are_merged() -> None:
    async with running_toys(2) as (live, toys):
        toys[0].pages[_ALL] = list_rows(row("a", 2, requests=7), row("b", 1, requests=1))
        toys[1].pages[_ALL] = list_rows(row("a", 1, requests=5))
        status, totals = await ask(live, "/api/v1/totals")
    (found,) = totals["tenants"]
    assert (status, found["tenant"], found["conversations"], found["requests"]) == (200, "t", 2, 8)


async def test_totals_are_read_page_by_page() -> None:
    async with running_toys(1) as (live, (toy,)):
        toy.pages[_ALL] = list_rows(row("a", 2), cursor="x=&")
        toy.pages[f"{_ALL}&cursor=x%3D%26"] = list_rows(row("b", 1))
        _, totals = await ask(live, "/api/v1/totals")
    assert totals["tenants"][0]["conversations"] == 2


async def test_the_requests_of_a_conversation_are_asked_of_the_worker_that_saw_it_last() -> None:
    async with running_toys(3) as (live, toys):
        see(toys[0], 1)
        see(toys[1], 2)
        for at, toy in enumerate(toys):
            toy.pages[f"{_ONE}/requests"] = {"worker": at}
        assert await ask(live, f"{_ONE}/requests") == (200, {"worker": 1})
        await toys[1].crash()
        assert await ask(live, f"{_ONE}/requests") == (200, {"worker": 0})


async def test_a_worker_is_told_who_asked_and_a_client_cannot_say_it_itself() -> None:
    async with running_toys(1) as (live, (toy,)), running_front(live) as front:
        see(toy, 1)
        path = f"{_ONE}/originals/{'ab' * 32}"
        toy.pages[path] = {"role": "user"}
        headers = {"X-Gateway-Peer": "10.9.9.9"}
        async with aiohttp.ClientSession(headers=headers) as client:
            await client.get(f"http://127.0.0.1:{front.port}{path}")
        assert toy.asked[-1] == f"GET {path}" and toy.peers[-1] == "127.0.0.1"


async def test_a_change_that_hangs_is_not_asked_of_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still be carried out."""
    monkeypatch.setattr(conversations, "_LONG_SECONDS", 0.2)
    path = f"{_ONE}/summaries/ab"
    async with running_toys(2) as (live, toys):
        see(toys[0], 2, has_body=True)
        see(toys[1], 1)
        toys[0].hanging = path
        assert await ask_for_status(live, path, "PUT", b"{}") == 503
        assert f"PUT {path}" in toys[0].asked and f"PUT {path}" not in toys[1].asked
