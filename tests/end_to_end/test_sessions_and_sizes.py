"""What the list of conversations says of sessions and of sizes is what a user would say."""

import json
from typing import Any

import aiohttp

from tests.toy.admin_port import ADMIN, get_json
from tests.toy.agent import make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, ask, run_session
from tests.toy.upstream import ToyUpstream

_WINDOW = 16_000


async def send(gateway: RunningGateway, label: str, messages: list[dict[str, str]]) -> str:
    """The id of the conversation. label: the client's name for its session; empty: none."""
    body = json.dumps({"model": "toy-model", "messages": messages}).encode()
    headers = {"Authorization": "Bearer sk-toy"} | ({"x-gateway-session": label} if label else {})
    async with aiohttp.ClientSession(headers=headers) as client:
        answer = await ask(client, f"{gateway.base_url}/chat/completions", body)
    assert answer.status == 200
    return answer.header("x-gateway-conversation") or ""


def make_history(turns: int, word: str) -> list[dict[str, str]]:
    """Two with one word are the same, as of a model that is asked without chance."""
    messages = [{"role": "user", "content": "Review the storage layer, please."}]
    for at in range(turns):
        messages.append({"role": "assistant", "content": f"Step {at}: {word}."})
        messages.append({"role": "user", "content": f"Go on with {at}."})
    return messages


async def run(gateway: RunningGateway, label: str, word: str, turns: int = 4) -> set[str]:
    return {await send(gateway, label, make_history(at, word)) for at in range(turns)}


async def list_rows(gateway: RunningGateway) -> list[dict[str, Any]]:
    listed = await get_json(gateway, "/conversations")
    return list(listed["conversations"])


async def test_two_runs_with_one_prompt_are_two_rows_with_their_own_names() -> None:
    async with ToyUpstream(window=_WINDOW) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        same = await run(gateway, "first", "done"), await run(gateway, "second", "done")
        other = await run(gateway, "third", "finished")
        rows = await list_rows(gateway)
        totals = await get_json(gateway, "/totals")
    assert [len(found) for found in (*same, other)] == [1, 1, 1]
    assert {(row["session"], row["requests"], row["parent"]) for row in rows} == {
        ("first", 4, None),
        ("second", 4, None),
        ("third", 4, None),
    }
    assert totals["tenants"][0]["conversations"] == 3


async def test_two_runs_at_once_do_not_take_each_others_row() -> None:
    async with ToyUpstream(window=_WINDOW) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        ids: dict[str, set[str]] = {"first": set(), "second": set()}
        for at in range(5):
            for label, found in ids.items():
                found.add(await send(gateway, label, make_history(at, "done")))
    assert [len(found) for found in ids.values()] == [1, 1] and ids["first"] != ids["second"]


async def test_branches_of_a_session_count_as_one_conversation() -> None:
    async with ToyUpstream(window=_WINDOW) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        for word in ("one", "two", "three"):
            await run(gateway, "", word)
        rows = await list_rows(gateway)
        totals = await get_json(gateway, "/totals")
    assert len(rows) == 3
    assert totals["tenants"][0]["conversations"] == 1


async def test_a_request_that_was_answered_is_shown_as_the_upstream_counted_it() -> None:
    """Whatever our own count says."""
    session = make_session(30, 3)
    async with (
        ToyUpstream(window=_WINDOW, bias=0.7) as toy,
        running_gateway(make_settings(toy, more=ADMIN)) as gateway,
    ):
        done = await run_session(session, gateway.base_url, toy, pace=Pace(last=16))
        (row,) = await list_rows(gateway)
        listed = await get_json(gateway, f"/conversations/{done.conversation}/requests")
    assert row["sent_tokens"] == row["prompt_tokens"] <= row["window"]
    assert row["received_tokens"] >= row["sent_tokens"]
    for point in listed["requests"]:
        assert point["sent"] == point["prompt_tokens"] <= row["window"]
