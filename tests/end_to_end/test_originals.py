"""Messages that were summarized or pruned are kept as received and can be read at the admin port.

docs/sources.md, 000: originals stay readable.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.toy.admin_port import ADMIN, get, get_json
from tests.toy.agent import Session, Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, Run, run_session, wait_until
from tests.toy.upstream import ToyUpstream

_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
_PRUNING = "{pruning: {eager: true, protect_tokens: 1500, minimum_tokens: 1000}}"
_PRUNES = f"policies: {{default: {_PRUNING}}}\n"
# No encoder of the gateway writes JSON like this.
_SHAPE = Shape(separators=(" , ", " : "), ascii=True, max_tokens=1_000)


async def read_lists(gateway: RunningGateway, conversation: str) -> list[Any]:
    """One for each compaction or batch of pruned results, the oldest first."""
    await gateway.settle()
    listed = await get_json(gateway, f"/conversations/{conversation}/originals")
    return list(reversed(listed["taken"]))


async def read_original(gateway: RunningGateway, conversation: str, digest: str) -> bytes:
    status, body = await get(gateway, f"/conversations/{conversation}/originals/{digest}")
    assert status == 200
    return body


async def play(gateway: RunningGateway, toy: ToyUpstream, session: Session, pace: Pace | None = None) -> Run:
    run = await run_session(session, gateway.base_url, toy, _SHAPE, pace or Pace())
    assert run.failed == [] and run.refusals == []
    return run


def raws_of(session: Session) -> list[bytes]:
    """The messages behind the leading block, each as the client writes it."""
    messages = session.messages(len(session) - 1)[len(session.leading) :]
    return [json.dumps(message, separators=_SHAPE.separators).encode() for message in messages]


def count_bytes(database: Path) -> int:
    """The size of the file after its next checkpoint."""
    query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute(query).fetchone()[0])


@pytest.mark.system(7)
async def test_every_summarized_message_comes_back_byte_for_byte() -> None:
    session = make_session(45, 3)
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        identity = (await play(gateway, toy, session)).conversation
        lists = await read_lists(gateway, identity)
        originals = [each for taken in lists for each in taken["messages"]]
        texts = [await read_original(gateway, identity, each["digest"]) for each in originals]
    assert len(lists) > 1 and {taken["kind"] for taken in lists} == {"summary"}
    # Each compaction lists the messages that it folded; no message is listed twice.
    positions = [each["position"] for each in originals]
    assert positions == list(range(1, len(positions) + 1))
    raws = raws_of(session)
    assert texts == [raws[position] for position in positions]
    assert [each["bytes"] for each in originals] == [len(text) for text in texts]
    assert [taken["bytes"] for taken in lists] == [
        sum(each["bytes"] for each in taken["messages"]) for taken in lists
    ]


@pytest.mark.system(7)
async def test_every_pruned_message_comes_back_byte_for_byte() -> None:
    session = make_session(12, 3)
    more = ADMIN + _PRUNES
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        run = await play(gateway, toy, session)
        lists = await read_lists(gateway, run.conversation)
        originals = [each for taken in lists for each in taken["messages"]]
        texts = [await read_original(gateway, run.conversation, each["digest"]) for each in originals]
    assert {taken["kind"] for taken in lists} == {"prune"}
    raws = raws_of(session)
    assert texts == [raws[each["position"]] for each in originals]
    # The same messages have placeholders in the request that reached the upstream.
    sent: Any = run.outgoing[-1].request["messages"]
    hidden = [i for i, message in enumerate(sent[1:]) if str(message.get("content", "")).startswith("[Old")]
    assert hidden == sorted(each["position"] for each in originals)


@pytest.mark.system(7)
async def test_a_message_that_is_pruned_and_later_summarized_is_stored_once() -> None:
    session = make_session(60, 3, "many_users")
    more = ADMIN + _PRUNES
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        identity = (await play(gateway, toy, session)).conversation
        lists = await read_lists(gateway, identity)
        stored = await gateway.parts.foundation.stores.originals.scan("original:")
    digests = [each["digest"] for taken in lists for each in taken["messages"]]
    assert {taken["kind"] for taken in lists} == {"prune", "summary"}
    assert len(digests) > len(set(digests)) == len(stored)


@pytest.mark.system(7)
async def test_originals_of_one_tenant_are_not_found_by_another() -> None:
    session = make_session(20, 3)
    more = ADMIN + _TENANTS
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        red = (await play(gateway, toy, session, Pace(key="sk-red"))).conversation
        blue = (await play(gateway, toy, session, Pace(key="sk-blue", last=1))).conversation
        (taken, *_) = await read_lists(gateway, red)
        digest = taken["messages"][0]["digest"]
        assert await read_lists(gateway, blue) == []
        assert (await get(gateway, f"/conversations/{blue}/originals/{digest}"))[0] == 404
        assert (await get(gateway, f"/conversations/{red}/originals/{digest}"))[0] == 200
        # Two tenants with equal content have two records.
        await play(gateway, toy, session, Pace(key="sk-blue", first=1))
        (other, *_) = await read_lists(gateway, blue)
    assert len(other["messages"]) == len(taken["messages"])
    assert not {e["digest"] for e in other["messages"]} & {e["digest"] for e in taken["messages"]}


async def test_originals_are_not_found_in_another_conversation_of_the_same_tenant() -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        one = (await play(gateway, toy, make_session(20, 3))).conversation
        two = (await play(gateway, toy, make_session(20, 4))).conversation
        (taken, *_) = await read_lists(gateway, one)
        digest = taken["messages"][0]["digest"]
        assert (await get(gateway, f"/conversations/{two}/originals/{digest}"))[0] == 404


@pytest.mark.system(7)
@pytest.mark.parametrize("style", ["summarised", "pruned"])
async def test_a_policy_without_originals_stores_none(style: str, store_url: str) -> None:
    off = "originals: {keep: false}"
    policy = _PRUNING.replace("{pruning", f"{{{off}, pruning") if style == "pruned" else f"{{{off}}}"
    more = f"{ADMIN}policies: {{default: {policy}}}\n"
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=store_url, more=more)
        async with running_gateway(settings) as gateway:
            run = await play(gateway, toy, make_session(20, 3))
            assert set(run.plans) > {"passthrough"}
            assert await read_lists(gateway, run.conversation) == []
            assert await gateway.parts.foundation.stores.originals.scan("") == []


@pytest.mark.system(7)
async def test_originals_are_readable_after_a_restart_before_any_request(store_url: str) -> None:
    session = make_session(20, 3)
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=store_url, more=ADMIN)
        async with running_gateway(settings) as gateway:
            identity = (await play(gateway, toy, session)).conversation
        async with running_gateway(settings) as gateway:
            lists = await read_lists(gateway, identity)
            first = lists[0]["messages"][0]
            raw = await read_original(gateway, identity, first["digest"])
    assert raw == raws_of(session)[first["position"]]


@pytest.mark.system(7)
async def test_above_the_configured_size_the_oldest_originals_are_deleted_first(tmp_path: Path) -> None:
    sessions = [make_session(25, seed) for seed in range(6)]
    max_bytes = 150_000
    more = f"{ADMIN}retention: {{originals_bytes: {max_bytes}}}\n"
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=more)
        async with running_gateway(settings) as gateway:
            identities = [(await play(gateway, toy, sessions[0])).conversation]
            assert await read_lists(gateway, identities[0])
            identities += [(await play(gateway, toy, session)).conversation for session in sessions[1:]]
            await gateway.settle()
            database = tmp_path / "state" / "originals" / "cache.db"
            await wait_until(lambda: count_bytes(database) <= max_bytes)
            assert await read_lists(gateway, identities[0]) == []
            newest = await read_lists(gateway, identities[-1])
            each = newest[-1]["messages"][-1]
            raw = await read_original(gateway, identities[-1], each["digest"])
    assert raw == raws_of(sessions[-1])[each["position"]]


async def test_originals_and_logs_need_the_admin_token() -> None:
    more = "admin: {port: 0, token: secret}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        for page in ("originals", "originals/" + "0" * 64, "log"):
            assert (await get(gateway, f"/conversations/{'0' * 16}/{page}"))[0] == 401


@pytest.mark.parametrize("path", ["0123456789abcdef", "..", "%C3%A9", "x" * 5_000])
async def test_an_unknown_conversation_or_page_is_not_found(path: str) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        for page in ("log", "originals", f"originals/{'0' * 64}", "originals/x", "original"):
            assert (await get(gateway, f"/conversations/{path}/{page}"))[0] == 404
