"""What was summarised or pruned is kept as it was received, for the admin port (document 000 §5.2)."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, Run, run_session, wait_until
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0}\n"
_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
_PRUNING = "{pruning: {eager: true, protect_tokens: 1500, minimum_tokens: 1000}}"
_PRUNES = f"policies: {{default: {_PRUNING}}}\n"
# Not what any encoder of ours would write.
_SHAPE = Shape(separators=(" , ", " : "), ascii=True, max_tokens=1_000)


async def get(gateway: RunningGateway, path: str) -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{gateway.handle.admin_port}/api/conversations/{path}"
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        return answer.status, await answer.read()


async def read_lists(gateway: RunningGateway, conversation: str) -> list[Any]:
    """Once nothing is under way; the oldest first."""
    await wait_until(lambda: gateway.handle.is_idle)
    await gateway.handle._archive.finish()
    status, body = await get(gateway, f"{conversation}/originals")
    assert status == 200
    taken: list[Any] = json.loads(body)["taken"]
    return taken[::-1]


async def read_original(gateway: RunningGateway, conversation: str, digest: str) -> bytes:
    status, body = await get(gateway, f"{conversation}/originals/{digest}")
    assert status == 200
    return body


async def play(gateway: RunningGateway, toy: ToyUpstream, session: Session, pace: Pace | None = None) -> Run:
    run = await run_session(session, gateway.base_url, toy, _SHAPE, pace or Pace())
    assert run.failed == [] and run.refusals == []
    return run


def identity_of(run: Run) -> str:
    return run.answers[-1].header("x-gateway-conversation") or ""


def raws_of(session: Session) -> list[bytes]:
    """The messages behind the leading block, each as the client writes it."""
    messages = session.messages(len(session) - 1)[len(session.leading) :]
    return [json.dumps(message, separators=_SHAPE.separators).encode() for message in messages]


def count_bytes(database: Path) -> int:
    """As it is after its next checkpoint."""
    query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute(query).fetchone()[0])


async def test_every_message_that_was_summarised_comes_back_byte_for_byte() -> None:
    session = make_session(45, 3)
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        identity = identity_of(await play(gateway, toy, session))
        lists = await read_lists(gateway, identity)
        originals = [each for taken in lists for each in taken["messages"]]
        texts = [await read_original(gateway, identity, each["digest"]) for each in originals]
    assert len(lists) > 1 and {taken["kind"] for taken in lists} == {"summary"}
    # Each compaction names what it folded, and nothing twice.
    positions = [each["position"] for each in originals]
    assert positions == list(range(1, len(positions) + 1))
    raws = raws_of(session)
    assert texts == [raws[position] for position in positions]
    assert [each["bytes"] for each in originals] == [len(text) for text in texts]
    assert [taken["bytes"] for taken in lists] == [
        sum(each["bytes"] for each in taken["messages"]) for taken in lists
    ]


async def test_every_message_that_was_pruned_comes_back_byte_for_byte() -> None:
    session = make_session(12, 3)
    more = _ADMIN + _PRUNES
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        run = await play(gateway, toy, session)
        lists = await read_lists(gateway, identity_of(run))
        originals = [each for taken in lists for each in taken["messages"]]
        texts = [await read_original(gateway, identity_of(run), each["digest"]) for each in originals]
    assert {taken["kind"] for taken in lists} == {"prune"}
    raws = raws_of(session)
    assert texts == [raws[each["position"]] for each in originals]
    # These are the ones that upstream was no longer shown.
    sent: Any = run.outgoing[-1].request["messages"]
    hidden = [i for i, message in enumerate(sent[1:]) if str(message.get("content", "")).startswith("[Old")]
    assert hidden == sorted(each["position"] for each in originals)


async def test_a_message_that_is_pruned_and_then_summarised_is_stored_once() -> None:
    session = make_session(60, 3, "many_users")
    more = _ADMIN + _PRUNES
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        identity = identity_of(await play(gateway, toy, session))
        lists = await read_lists(gateway, identity)
        stored = await gateway.handle._shelf.scan("original:")
    digests = [each["digest"] for taken in lists for each in taken["messages"]]
    assert {taken["kind"] for taken in lists} == {"prune", "summary"}
    assert len(digests) > len(set(digests)) == len(stored)


async def test_one_tenants_originals_are_nobody_elses() -> None:
    session = make_session(20, 3)
    more = _ADMIN + _TENANTS
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        red = identity_of(await play(gateway, toy, session, Pace(key="sk-red")))
        blue = identity_of(await play(gateway, toy, session, Pace(key="sk-blue", last=1)))
        (taken, *_) = await read_lists(gateway, red)
        digest = taken["messages"][0]["digest"]
        assert await read_lists(gateway, blue) == []
        assert (await get(gateway, f"{blue}/originals/{digest}"))[0] == 404
        assert (await get(gateway, f"{red}/originals/{digest}"))[0] == 200
        # Equal content of two tenants is two records.
        await play(gateway, toy, session, Pace(key="sk-blue", first=1))
        (other, *_) = await read_lists(gateway, blue)
    assert len(other["messages"]) == len(taken["messages"])
    assert not {e["digest"] for e in other["messages"]} & {e["digest"] for e in taken["messages"]}


async def test_another_conversation_of_the_same_tenant_does_not_answer_either() -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        one = identity_of(await play(gateway, toy, make_session(20, 3)))
        two = identity_of(await play(gateway, toy, make_session(20, 4)))
        (taken, *_) = await read_lists(gateway, one)
        digest = taken["messages"][0]["digest"]
        assert (await get(gateway, f"{two}/originals/{digest}"))[0] == 404


@pytest.mark.parametrize("style", ["summarised", "pruned"])
async def test_a_policy_that_keeps_none_stores_none(style: str, tmp_path: Path) -> None:
    off = "originals: {keep: false}"
    policy = _PRUNING.replace("{pruning", f"{{{off}, pruning") if style == "pruned" else f"{{{off}}}"
    more = f"{_ADMIN}policies: {{default: {policy}}}\n"
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=more)
        async with running_gateway(settings) as gateway:
            run = await play(gateway, toy, make_session(20, 3))
            assert {answer.header("x-gateway-plan") for answer in run.answers} > {"passthrough"}
            assert await read_lists(gateway, identity_of(run)) == []
            assert await gateway.handle._shelf.scan("") == []


async def test_a_restart_keeps_them_and_needs_no_request_first(tmp_path: Path) -> None:
    session = make_session(20, 3)
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=_ADMIN)
        async with running_gateway(settings) as gateway:
            identity = identity_of(await play(gateway, toy, session))
        async with running_gateway(settings) as gateway:
            lists = await read_lists(gateway, identity)
            first = lists[0]["messages"][0]
            raw = await read_original(gateway, identity, first["digest"])
    assert raw == raws_of(session)[first["position"]]


async def test_beyond_the_bound_the_oldest_go_first(tmp_path: Path) -> None:
    sessions = [make_session(25, seed) for seed in range(6)]
    most_bytes = 150_000
    more = f"{_ADMIN}retention: {{originals_bytes: {most_bytes}}}\n"
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=more)
        async with running_gateway(settings) as gateway:
            identities = [identity_of(await play(gateway, toy, sessions[0]))]
            assert await read_lists(gateway, identities[0])
            identities += [identity_of(await play(gateway, toy, session)) for session in sessions[1:]]
            await gateway.handle._archive.finish()
            database = tmp_path / "state" / "originals" / "cache.db"
            await wait_until(lambda: count_bytes(database) <= most_bytes, 5)
            assert await read_lists(gateway, identities[0]) == []
            newest = await read_lists(gateway, identities[-1])
            each = newest[-1]["messages"][-1]
            raw = await read_original(gateway, identities[-1], each["digest"])
    assert raw == raws_of(sessions[-1])[each["position"]]


async def test_the_originals_are_guarded_like_everything_on_that_port() -> None:
    more = "admin: {port: 0, token: secret}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        for path in ("0" * 16 + "/originals", "0" * 16 + "/originals/" + "0" * 64, "0" * 16 + "/log"):
            assert (await get(gateway, path))[0] == 401


@pytest.mark.parametrize("path", ["0123456789abcdef", "..", "%C3%A9", "x" * 5_000])
async def test_what_nobody_saw_is_404(path: str) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        for page in ("log", "originals", f"originals/{'0' * 64}", "originals/x", "original"):
            assert (await get(gateway, f"{path}/{page}"))[0] == 404
