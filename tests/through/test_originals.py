"""Messages that were summarized or pruned are kept as received and can be read at the admin port, and both
arrays, as received and as sent, are shown as they were on the wire.

docs/sources.md, 000: originals stay readable.
"""

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.toy.admin_calls import ask_to_compact, get, get_json
from tests.toy.agent import Session, Shape, make_session
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.house import ADMIN, make_settings
from tests.toy.product import Product, serve
from tests.toy.running import Pace, Run, run_session, wait_until
from tests.toy.trimming import keep_first_and_newest
from tests.toy.upstream import ToyUpstream

_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
_PRUNING = "{pruning: {eager: true, protect_tokens: 1500, minimum_tokens: 1000}}"
_PRUNES = f"policies: {{default: {_PRUNING}}}\n"
# No encoder of the gateway writes JSON like this.
_SHAPE = Shape(separators=(" , ", " : "), ascii=True, max_tokens=1_000)


async def read_lists(product: Product, conversation: str) -> list[Any]:
    """One for each compaction or batch of pruned results, the oldest first."""
    await product.at_rest()
    listed = await get_json(product, f"/conversations/{conversation}/originals")
    return list(reversed(listed["taken"]))


async def read_original(product: Product, conversation: str, digest: str) -> bytes:
    status, body = await get(product, f"/conversations/{conversation}/originals/{digest}")
    assert status == 200
    return body


async def play(product: Product, toy: ToyUpstream, session: Session, pace: Pace | None = None) -> Run:
    run = await run_session(session, product.base_url, toy, _SHAPE, pace or Pace())
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
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=ADMIN)) as product:
        identity = (await play(product, toy, session)).conversation
        lists = await read_lists(product, identity)
        originals = [each for taken in lists for each in taken["messages"]]
        texts = [await read_original(product, identity, each["digest"]) for each in originals]
        word = next(fact.token for fact in session.facts if fact.kind == "tool")
        found = (await get_json(product, f"/conversations/{identity}/search?q={word}&limit=1"))["found"]
    assert len(lists) > 1 and {taken["kind"] for taken in lists} == {"summary"}
    # Each compaction lists the messages that it folded; no message is listed twice.
    positions = [each["position"] for each in originals]
    assert positions == list(range(1, len(positions) + 1))
    raws = raws_of(session)
    assert texts == [raws[position] for position in positions]
    assert [each["bytes"] for each in originals] == [len(text) for text in texts]
    for taken in lists:
        assert taken["bytes"] == sum(each["bytes"] for each in taken["messages"])
    assert word.encode() in raws[found[0]["position"]] and word in found[0]["text"]


@pytest.mark.system(7)
async def test_every_pruned_message_comes_back_byte_for_byte() -> None:
    session, more = make_session(12, 3), ADMIN + _PRUNES
    async with ToyUpstream(window=64_000) as toy, serve(make_settings(toy, more=more)) as product:
        run = await play(product, toy, session)
        lists = await read_lists(product, run.conversation)
        originals = [each for taken in lists for each in taken["messages"]]
        texts = [await read_original(product, run.conversation, each["digest"]) for each in originals]
    assert {taken["kind"] for taken in lists} == {"prune"}
    raws = raws_of(session)
    assert texts == [raws[each["position"]] for each in originals]
    # The same messages have placeholders in the request that reached the upstream.
    sent: Any = run.outgoing[-1].request["messages"]
    hidden = [i for i, message in enumerate(sent[1:]) if str(message.get("content", "")).startswith("[Old")]
    assert hidden == sorted(each["position"] for each in originals)


@pytest.mark.system(7)
async def test_a_message_that_is_pruned_and_later_summarized_is_listed_under_one_digest() -> None:
    session, more = make_session(60, 3, "many_users"), ADMIN + _PRUNES
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=more)) as product:
        lists = await read_lists(product, (await play(product, toy, session)).conversation)
    places = [(each["digest"], each["position"]) for taken in lists for each in taken["messages"]]
    assert {taken["kind"] for taken in lists} == {"prune", "summary"}
    assert len(places) > len(set(places)) == len({digest for digest, _ in places})


@pytest.mark.system(7)
async def test_originals_are_not_found_by_another_tenant_or_in_another_conversation() -> None:
    session, more = make_session(20, 3), ADMIN + _TENANTS
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=more)) as product:
        red = (await play(product, toy, session, Pace(key="sk-red"))).conversation
        beside = (await play(product, toy, make_session(20, 4), Pace(key="sk-red"))).conversation
        blue = (await play(product, toy, session, Pace(key="sk-blue", last=1))).conversation
        (taken, *_) = await read_lists(product, red)
        digest = taken["messages"][0]["digest"]
        assert await read_lists(product, blue) == []
        for identity, status in ((blue, 404), (beside, 404), (red, 200)):
            assert (await get(product, f"/conversations/{identity}/originals/{digest}"))[0] == status
        # Two tenants with equal content have two records.
        await play(product, toy, session, Pace(key="sk-blue", first=1))
        (other, *_) = await read_lists(product, blue)
    assert len(other["messages"]) == len(taken["messages"])
    assert not {e["digest"] for e in other["messages"]} & {e["digest"] for e in taken["messages"]}


@pytest.mark.system(7)
@pytest.mark.parametrize("style", ["summarised", "pruned"])
async def test_a_policy_without_originals_stores_none(style: str, tmp_path: Path) -> None:
    off, session = "originals: {keep: false}", make_session(20, 3, facts="all")
    policy = _PRUNING.replace("{pruning", f"{{{off}, pruning") if style == "pruned" else f"{{{off}}}"
    more = f"{ADMIN}policies: {{default: {policy}}}\n"
    toy = ToyUpstream(window=16_000)
    async with toy, serve(make_settings(toy, store=f"disk:{tmp_path}/state", more=more)) as product:
        run = await play(product, toy, session)
        assert set(run.plans) > {"passthrough"}
        assert await read_lists(product, run.conversation) == []
    stored = await asyncio.to_thread(
        lambda: [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    )
    words = [fact.token.encode() for fact in session.facts if fact.kind == "tool"]
    told = b"".join(seen.body for seen in toy.summaries)
    assert not [word for word in words if word not in told and any(word in data for data in stored)]


@pytest.mark.system(7)
async def test_originals_are_readable_after_a_restart_before_any_request(store_url: str) -> None:
    session = make_session(20, 3)
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=store_url, more=ADMIN)
        async with serve(settings) as product:
            identity = (await play(product, toy, session)).conversation
        async with serve(settings) as product:
            lists = await read_lists(product, identity)
            first = lists[0]["messages"][0]
            raw = await read_original(product, identity, first["digest"])
    assert raw == raws_of(session)[first["position"]]


@pytest.mark.system(7)
async def test_above_the_configured_size_the_oldest_originals_are_deleted_first(tmp_path: Path) -> None:
    sessions, max_bytes = [make_session(25, seed) for seed in range(6)], 150_000
    more = f"{ADMIN}retention: {{originals_bytes: {max_bytes}}}\n"
    toy = ToyUpstream(window=16_000)
    async with toy, serve(make_settings(toy, store=f"disk:{tmp_path}/state", more=more)) as product:
        identities = [(await play(product, toy, sessions[0])).conversation]
        oldest = (await read_lists(product, identities[0]))[-1]["messages"][0]["digest"]
        identities += [(await play(product, toy, session)).conversation for session in sessions[1:]]
        await product.at_rest()
        database = tmp_path / "state" / "blobs" / "original" / "cache.db"
        await wait_until(lambda: count_bytes(database) <= max_bytes)
        path = f"/conversations/{identities[0]}/originals/{oldest}"
        assert (await get(product, path))[0] == 404
        each = (await read_lists(product, identities[-1]))[-1]["messages"][-1]
        raw = await read_original(product, identities[-1], each["digest"])
    assert raw == raws_of(sessions[-1])[each["position"]]


@pytest.mark.parametrize("path", ["0123456789abcdef", "..", "%C3%A9", "x" * 5_000])
async def test_originals_and_logs_need_the_admin_token_and_a_known_conversation(path: str) -> None:
    async with ToyUpstream() as toy, serve(make_settings(toy, more=ADMIN)) as product:
        for page in ("log", "originals", f"originals/{'0' * 64}", "originals/x", "original"):
            assert (await get(product, f"/conversations/{path}/{page}"))[0] == 404
            assert (await get(product, f"/conversations/{path}/{page}", None))[0] == 401


# The two arrays.


def read_array(body: bytes) -> list[Any]:
    fields = json.loads(body)
    array: list[Any] = fields["messages"] if "messages" in fields else fields["input"]
    return array


async def play_turn(
    product: Product, toy: ToyUpstream, session: Session, shape: Shape, turn: int
) -> tuple[Any, str]:
    """One turn, and what is shown of it. Also checks both arrays."""
    pace = Pace(first=turn, last=turn + 1, headers={"x-gateway-session": "one"})
    run = await run_session(session, product.base_url, toy, shape, pace)
    assert run.failed == []
    await product.at_rest()
    shown = await get_json(product, f"/conversations/{run.conversation}/messages")
    sent = next(seen for seen in reversed(run.seen) if not seen.is_summary)
    assert [row["message"] for row in shown["sent"]] == read_array(sent.body)
    received = [row["message"] for row in shown["received"] if row["fate"] != "gone"]
    assert received == read_array(session.request(turn, shape))
    assert shown["total"] == {"received": len(shown["received"]), "sent": len(shown["sent"])}
    return shown, run.plans[0] or ""


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
async def test_both_arrays_are_those_of_the_wire(dialect: Dialect) -> None:
    """Old results are cleared long before a summary is made."""
    shape, session = Shape(dialect=dialect, stream=True), make_session(24, 3)
    plans, fates, kinds = set(), set(), set()
    more = ADMIN + _PRUNES
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=more)) as product:
        for turn in range(len(session)):
            shown, plan = await play_turn(product, toy, session, shape, turn)
            if turn == 15:
                # Pruning alone would be enough for long.
                assert (await ask_to_compact(product, shown["id"]))[0] == 202
                await product.at_rest()
            plans.add(plan)
            fates |= {row["fate"] for row in shown["received"]}
            kinds |= {row["kind"] for row in shown["sent"]}
        parts: list[Any] = []
        start: int | None = 0
        while start is not None:
            path = f"/conversations/{shown['id']}/messages?start={start}&limit=7"
            parts.append(await get_json(product, path))
            start = parts[-1]["next"]
    for array in ("received", "sent"):
        assert [row for part in parts for row in part[array]] == shown[array]
    assert {"passthrough", "pivot"} <= plans
    assert {"sent", "folded", "cleared"} <= fates
    assert {"message", "summary", "cleared"} <= kinds


async def test_a_trimmed_history_is_shown_with_what_is_gone() -> None:
    session = replace(make_session(40, 40, "one_user", 500), trim=keep_first_and_newest(60))
    fates = set()
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=ADMIN)) as product:
        for turn in range(len(session)):
            shown, _ = await play_turn(product, toy, session, Shape(), turn)
            fates |= {row["fate"] for row in shown["received"]}
    assert {"sent", "folded", "gone"} <= fates


async def test_texts_are_not_shown_where_the_policy_hides_them() -> None:
    session, more = make_session(2, 3), "admin: {port: 0}\npolicies: {default: {show_texts: false}}\n"
    async with ToyUpstream() as toy, serve(make_settings(toy, more=more)) as product:
        run = await run_session(session, product.base_url, toy)
        for page in ("messages", "summary", "export", "search?q=x", "diff"):
            status, body = await get(product, f"/conversations/{run.conversation}/{page}", None)
            assert status == 403 and "show_texts" in json.loads(body)["detail"], page
        row = await asyncio.wait_for(get(product, f"/conversations/{run.conversation}", None), 30)
    assert json.loads(row[1])["title"] is None
