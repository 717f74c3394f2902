"""What the admin port shows as received and as sent is what the client sent and what the upstream got."""

import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from tests.toy.admin_port import ask_to_compact
from tests.toy.agent import Session, Shape, make_session
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, run_session
from tests.toy.trimming import keep_first_and_newest
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0, token: sesame}\n"
# Old results are cleared long before a summary is made.
_PRUNING = "policies: {default: {pruning: {eager: true, minimum_tokens: 1000, protect_tokens: 1500}}}\n"
_HEADERS = {"Authorization": "Bearer sesame"}


async def read(gateway: RunningGateway, identity: str, query: str = "") -> Any:
    url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{identity}/messages{query}"
    async with aiohttp.ClientSession(headers=_HEADERS) as client, client.get(url) as response:
        assert response.status == 200, await response.read()
        return await response.json()


def read_array(body: bytes) -> list[Any]:
    fields = json.loads(body)
    array: list[Any] = fields["messages"] if "messages" in fields else fields["input"]
    return array


async def play(
    gateway: RunningGateway, toy: ToyUpstream, session: Session, shape: Shape, turn: int
) -> tuple[Any, str]:
    """One turn, and what is shown of it. Also checks both arrays."""
    pace = Pace(first=turn, last=turn + 1, headers={"x-gateway-session": "one"})
    run = await run_session(session, gateway.base_url, toy, shape, pace)
    assert run.failed == []
    await gateway.settle()
    shown = await read(gateway, run.conversation)
    sent = next(seen for seen in reversed(run.seen) if not seen.is_summary)
    assert [row["message"] for row in shown["sent"]] == read_array(sent.body)
    received = [row["message"] for row in shown["received"] if row["fate"] != "gone"]
    assert received == read_array(session.request(turn, shape))
    assert shown["total"] == {"received": len(shown["received"]), "sent": len(shown["sent"])}
    return shown, run.plans[0] or ""


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_both_arrays_are_those_of_the_wire(dialect: Dialect, is_streamed: bool) -> None:
    shape, session = Shape(dialect=dialect, stream=is_streamed), make_session(24, 3)
    plans, fates, kinds = set(), set(), set()
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=_ADMIN + _PRUNING)) as gateway,
    ):
        for turn in range(len(session)):
            shown, plan = await play(gateway, toy, session, shape, turn)
            if turn == 15:
                # Pruning alone would be enough for long.
                assert (await ask_to_compact(gateway, shown["id"], headers=_HEADERS))[0] == 202
                await gateway.settle()
            plans.add(plan)
            fates |= {row["fate"] for row in shown["received"]}
            kinds |= {row["kind"] for row in shown["sent"]}
    assert {"passthrough", "pivot"} <= plans
    assert {"sent", "folded", "cleared"} <= fates
    assert {"message", "summary", "cleared"} <= kinds


async def test_a_trimmed_history_is_shown_with_what_is_gone() -> None:
    session = replace(make_session(40, 40, "one_user", 500), trim=keep_first_and_newest(60))
    fates = set()
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=_ADMIN)) as gateway,
    ):
        for turn in range(len(session)):
            shown, _ = await play(gateway, toy, session, Shape(), turn)
            fates |= {row["fate"] for row in shown["received"]}
    assert {"sent", "folded", "gone"} <= fates


async def test_parts_join_to_the_whole() -> None:
    session = make_session(20, 3)
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=_ADMIN)) as gateway,
    ):
        run = await run_session(session, gateway.base_url, toy)
        whole = await read(gateway, run.conversation)
        parts: list[Any] = []
        start: int | None = 0
        while start is not None:
            parts.append(await read(gateway, run.conversation, f"?start={start}&limit=7"))
            start = parts[-1]["next"]
    for array in ("received", "sent"):
        assert [row for part in parts for row in part[array]] == whole[array]
    assert {part["at"] for part in parts} == {whole["at"]}


async def test_texts_are_not_shown_where_the_policy_hides_them() -> None:
    session, more = make_session(2, 3), "admin: {port: 0}\npolicies: {default: {show_texts: false}}\n"
    async with (
        ToyUpstream() as toy,
        running_gateway(make_settings(toy, more=more)) as gateway,
    ):
        run = await run_session(session, gateway.base_url, toy)
        url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}/messages"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            problem = await response.json()
    assert response.status == 403 and "show_texts" in problem["detail"]
