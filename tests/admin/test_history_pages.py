"""Log and originals of a conversation, also of one that an earlier process has served."""

from pathlib import Path

from tests.toy.admin_port import ADMIN, get, get_json
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

_SHAPE = Shape(max_tokens=1_000)


async def test_entries_and_removals_are_listed_the_newest_first() -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await run_session(make_session(45, 3), gateway.base_url, toy, _SHAPE)
        await gateway.settle()
        path = f"/v1/conversations/{run.conversation}"
        entries = (await get_json(gateway, f"{path}/log"))["log"]
        taken = (await get_json(gateway, f"{path}/originals"))["taken"]
    assert len(entries) == len(taken) > 1
    times = [entry["when"] for entry in entries]
    assert times == sorted(times, reverse=True)
    assert [each["messages"][0]["position"] for each in taken] == sorted(
        (each["messages"][0]["position"] for each in taken), reverse=True
    )
    assert {(entry["kind"], entry["outcome"], entry["model"]) for entry in entries} == {
        ("summary", "done", "toy-model")
    }
    assert all(each["bytes"] == sum(one["bytes"] for one in each["messages"]) for each in taken)


async def test_removals_are_listed_page_by_page() -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await run_session(make_session(45, 3), gateway.base_url, toy, _SHAPE)
        await gateway.settle()
        path = f"/v1/conversations/{run.conversation}/originals"
        whole = await get_json(gateway, path)
        taken, query = list[object](), "?limit=1"
        while query:
            page = await get_json(gateway, path + query)
            assert len(page["taken"]) == 1
            taken += page["taken"]
            assert page["left_off"] == len(whole["taken"]) - len(taken)
            query = f"?limit=1&cursor={page['next']}" if page["next"] is not None else ""
        refused = [
            (await get(gateway, f"{path}?{query}"))[0]
            for query in ("limit=0", "limit=10001", "cursor=x", "cursor=" + "g" * 16, "cursor=")
        ]
    assert whole["next"] is None and taken == whole["taken"] and len(taken) > 1
    assert refused == [400] * 5


async def test_a_conversation_that_was_never_compacted_has_empty_lists() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await run_session(make_session(2, 3), gateway.base_url, toy, _SHAPE)
        path = f"/v1/conversations/{run.conversation}"
        assert (await get_json(gateway, f"{path}/log"))["log"] == []
        originals = await get_json(gateway, f"{path}/originals")
    assert (originals["taken"], originals["left_off"]) == ([], 0)


async def test_the_history_outlives_the_process(tmp_path: Path) -> None:
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=ADMIN)
        async with running_gateway(settings) as gateway:
            run = await run_session(make_session(30, 3), gateway.base_url, toy, _SHAPE)
            await gateway.settle()
            paths = [f"/v1/conversations/{run.conversation}{more}" for more in ("/log", "/originals")]
            before = [await get(gateway, path) for path in paths]
        async with running_gateway(settings) as gateway:
            assert [await get(gateway, path) for path in paths] == before
    assert [status for status, _ in before] == [200, 200]
