"""What operators read of conversations: lists, sums, numbers and events equal what the upstream has seen."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.house import ADMIN, ADMIN_TOKEN, House, make_settings
from tests.toy.product import serve
from tests.toy.running import Run
from tests.toy.upstream import ToyUpstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRICE = "{input: 2, cached: 1, output: 8}"
MORE = "policies: {default: {economy: 0}}\n"
_SHAPE = Shape(max_tokens=1_000)


async def play(house: House, session: Session) -> Run:
    run = await house.play(session, _SHAPE)
    assert run.failed == []
    await house.at_rest()
    return run


async def read(house: House, path: str) -> Any:
    status, value = await house.admin(path)
    assert status == 200, value
    return value


async def find_row(house: House, identity: str) -> Any:
    (row,) = (await read(house, f"/v1/conversations?q={identity}"))["conversations"]
    return row


async def test_a_row_has_what_the_upstream_counted(house: House) -> None:
    session = make_session(30, 3)
    run = await play(house, session)
    row = await find_row(house, run.conversation)
    shown = await read(house, f"/v1/conversations/{run.conversation}")
    usage = json.loads(run.answers[-1].body)["usage"]
    assert (row["id"], row["parent"], row["model"]) == (run.conversation, None, "toy-model")
    assert (row["upstream"], len(row["tenant"])) == ("default", len("key:") + 12)
    assert (row["requests"], row["compactions"]) == (30, len(house.toy.summaries))
    assert row["prompt_tokens"] == usage["prompt_tokens"] == run.outgoing[-1].prompt_tokens
    assert row["output_tokens"] == usage["completion_tokens"]
    assert row["total_sent_tokens"] == sum(seen.prompt_tokens for seen in run.outgoing)
    assert row["saved_tokens"] == row["total_received_tokens"] - row["total_sent_tokens"] > 0
    assert row["pivot"]["kind"] == "summary" and row["pivot"]["covers"] > 1
    assert (row["window"], row["hard"]) == (16_000, 12_000)
    assert {**shown, **row} == shown
    assert shown["body_in_memory"] and shown["lines"]["hard"] == 12_000
    assert shown["messages"] == len(session.said(29))
    # Money: each request and each call for a summary is paid by what the upstream counted.
    outputs = [json.loads(answer.body)["usage"]["completion_tokens"] for answer in run.answers]
    paid = (2 * row["total_sent_tokens"] + 8 * sum(outputs)) / 1e6
    called = row["summary_tokens"] - sum(seen.prompt_tokens for seen in house.toy.summaries)
    summaries = (2 * sum(seen.prompt_tokens for seen in house.toy.summaries) + 8 * called) / 1e6
    assert row["summary_usd"] == pytest.approx(summaries, abs=1e-4)
    assert row["spent_usd"] in (pytest.approx(paid, abs=1e-4), pytest.approx(paid + summaries, abs=1e-4))
    # No text of the summary or of the conversation is in the numbers.
    text = json.dumps({**shown, "title": None})
    assert not any(fact.token in text for fact in session.facts) and house.key not in text


async def test_each_request_has_its_sizes_in_order(house: House) -> None:
    run = await play(house, make_session(30, 4))
    listed = await read(house, f"/v1/conversations/{run.conversation}/requests")
    rows = listed["requests"]
    assert [row["prompt_tokens"] for row in rows] == [seen.prompt_tokens for seen in run.outgoing]
    assert [row["plan"] for row in rows] == run.plans
    # A change is told where the prefix broke: at each summary that is first used.
    firsts = [row["change"] for row in rows if row["change"] is not None]
    assert firsts == ["compaction"] * len(firsts) and 1 <= len(firsts) <= len(house.toy.summaries)
    # Of what was sent whole, as much was received.
    assert all((row["received"] == row["sent"]) == (row["plan"] == "passthrough") for row in rows)
    assert listed["left_off"] == 0


async def test_conversations_are_listed_newest_first_and_page_by_page(house: House) -> None:
    ids = []
    for seed in range(5):
        named = house if seed % 2 else House(house.toy, house.product, f"{house.key}-other")
        ids.append((await play(named, make_session(2, 10 + seed))).conversation)
    listed = (await read(house, "/v1/conversations?limit=500"))["conversations"]
    assert [row["id"] for row in listed[:5]] == ids[::-1]
    assert [row["last_seen"] for row in listed] == sorted((row["last_seen"] for row in listed), reverse=True)
    seen, cursor = list[str](), ""
    for _ in range(len(listed)):
        page = await read(house, f"/v1/conversations?limit=2{cursor}")
        assert len(page["conversations"]) <= 2
        seen += [row["id"] for row in page["conversations"]]
        cursor = f"&cursor={page['next']}"
        if page["next"] is None:
            break
    assert seen == [row["id"] for row in listed]
    assert (await read(house, f"/v1/conversations?limit={len(listed)}"))["next"] is None
    red = listed[0]["tenant"]
    mine = (await read(house, f"/v1/conversations?tenant={red}"))["conversations"]
    assert [row["id"] for row in mine] == [row["id"] for row in listed if row["tenant"] == red] == ids[4::-2]
    for query, found in (
        ("tenant=key:", []),
        ("model=other", []),
        ("q=nothing-like-it", []),
        (f"q={ids[0][3:9].upper()}", [ids[0]]),
        (f"tenant={red}&q={ids[1]}", []),
        (f"q={ids[1]}&purpose=summary", []),
    ):
        rows = (await read(house, f"/v1/conversations?{query}"))["conversations"]
        assert [row["id"] for row in rows] == found, query


async def test_a_row_that_stays_is_neither_lost_nor_repeated_by_those_that_change(house: House) -> None:
    still = [(await play(house, make_session(1, 30 + seed))).conversation for seed in range(4)]
    busy = make_session(4, 40)
    await house.play(busy, _SHAPE, last=1)
    await house.at_rest()
    row = (await read(house, "/v1/conversations?limit=1"))["conversations"][0]
    found, cursor = list[str](), ""
    for turn in itertools.count(1):
        page = await read(house, f"/v1/conversations?limit=2&tenant={row['tenant']}{cursor}")
        found += [each["id"] for each in page["conversations"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
        await house.play(busy, _SHAPE, first=turn, last=turn + 1)
    assert [identity for identity in found if identity in still] == still[::-1]


async def test_sums_are_those_of_the_rows(house: House) -> None:
    for key, seed in ((house.key, 50), (house.key, 51), (f"{house.key}-b", 52)):
        await play(House(house.toy, house.product, key), make_session(20, seed))
    rows = (await read(house, "/v1/conversations?limit=500"))["conversations"]
    totals = await read(house, "/v1/totals")
    for group, name in (("tenants", "tenant"), ("models", "model")):
        for each in totals[group]:
            own = [row for row in rows if row[name] == each[name]]
            assert own and each["conversations"] == len(own)
            for key in (
                "requests",
                "compactions",
                "prunings",
                "cache_breaks",
                "saved_tokens",
                "summary_tokens",
            ):
                assert each[key] == sum(row[key] for row in own), key
            for key in ("spent_usd", "saved_usd", "summary_usd"):
                known = [row[key] for row in own if row[key] is not None]
                assert each[key] == (pytest.approx(sum(known), abs=1e-5) if known else None)
            breaks = [sum(row["economics"]["breaks"].values()) for row in own]
            assert sum(each["economics"]["breaks"].values()) == sum(breaks)
    names = [each["tenant"] for each in totals["tenants"]]
    assert names == sorted(names)
    requests = [each["requests"] for each in totals["models"]]
    assert requests == sorted(requests, reverse=True)


async def test_branches_and_side_calls_of_a_session_count_once(house: House) -> None:
    label = {"x-session-id": f"ses-{house.key}"}
    texts = (
        ("Port the parser.", label),
        (
            "List the files.",
            {"x-session-id": f"sub-{house.key}", "x-parent-session-id": label["x-session-id"]},
        ),
        ("Your task is to create a detailed summary of the conversation so far.", label),
    )
    for text, headers in texts:
        body = {"model": "toy-model", "messages": [{"role": "user", "content": text}]}
        assert (await house.post("/chat/completions", body, **headers)).status == 200
    await house.at_rest()
    rows = (await read(house, "/v1/conversations?limit=3"))["conversations"][::-1]
    assert [(row["purpose"], row["session"] == label["x-session-id"]) for row in rows] == [
        ("main", True),
        ("agent", False),
        ("summary", True),
    ]
    totals = {each["tenant"]: each for each in (await read(house, "/v1/totals"))["tenants"]}
    own = totals[rows[0]["tenant"]]
    assert own["requests"] == 3 and own["conversations"] == 1


async def test_log_and_originals_are_listed_the_newest_first(house: House) -> None:
    run = await play(house, make_session(45, 5))
    path = f"/v1/conversations/{run.conversation}"
    entries = (await read(house, f"{path}/log"))["log"]
    whole = await read(house, f"{path}/originals")
    taken = whole["taken"]
    assert len(entries) == len(taken) > 1
    times = [entry["when"] for entry in entries]
    assert times == sorted(times, reverse=True)
    positions = [each["messages"][0]["position"] for each in taken]
    assert positions[0] == max(positions) and len(set(positions)) == len(positions)
    found = {(entry["kind"], entry["outcome"], entry["model"]) for entry in entries}
    assert (
        ("summary", "done", "toy-model")
        in found
        <= {("summary", "done", "toy-model"), ("prune", "done", None)}
    )
    assert all(each["bytes"] == sum(one["bytes"] for one in each["messages"]) for each in taken)
    # Page by page.
    parts, query = list[object](), "?limit=1"
    while query:
        page = await read(house, f"{path}/originals{query}")
        assert len(page["taken"]) == 1
        parts += page["taken"]
        assert page["left_off"] == len(taken) - len(parts)
        query = f"?limit=1&cursor={page['next']}" if page["next"] is not None else ""
    assert whole["next"] is None and parts == taken


async def test_a_conversation_that_was_never_compacted_has_empty_lists(house: House) -> None:
    run = await play(house, make_session(2, 6))
    path = f"/v1/conversations/{run.conversation}"
    assert (await read(house, f"{path}/log"))["log"] == []
    originals = await read(house, f"{path}/originals")
    assert (originals["taken"], originals["left_off"]) == ([], 0)
    assert (await read(house, f"{path}/summaries"))["summaries"] == []


async def test_both_arrays_say_what_became_of_each_message(house: House) -> None:
    run = await play(house, make_session(30, 7))
    path = f"/v1/conversations/{run.conversation}/messages"
    page = await read(house, path)
    assert (page["id"], page["format"]) == (run.conversation, "chat")
    received = len(make_session(30, 7).messages(29))
    sent = len(CHAT.items(run.outgoing[-1].request))
    assert page["total"] == {"received": received, "sent": sent}
    assert {row["fate"] for row in page["received"]} > {"sent"}
    assert [row["kind"] for row in page["sent"]].count("summary") == 1
    assert page["received"][0]["position"] is None and page["received"][1]["position"] == 0
    assert all(row["tokens"] > 0 and row["bytes"] > 0 for row in page["received"])
    parts = [await read(house, f"{path}?start={start}&limit=20") for start in range(0, received, 20)]
    whole = await read(house, f"{path}?limit=500")
    assert [row for part in parts for row in part["received"]] == whole["received"]


async def test_the_history_outlives_the_process_and_a_compaction_waits_for_its_request(
    tmp_path: Path,
) -> None:
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=ADMIN)
        session = make_session(31, 3)
        async with serve(settings) as product:
            house = House(toy, product, "sk-a")
            run = await house.play(session, _SHAPE, last=30)
            await house.at_rest()
            paths = [f"/v1/conversations/{run.conversation}{more}" for more in ("/log", "/originals")]
            before = [await read(house, path) for path in paths]
        async with serve(settings) as product:
            house = House(toy, product, "sk-a")
            # What conversations did is read in the background of a start.
            while not (await read(house, "/conversations"))["conversations"]:
                await asyncio.sleep(0.02)
            assert [await read(house, path) for path in paths] == before
            calls = len(toy.summaries)
            status, begun = await house.admin(f"/v1/conversations/{run.conversation}/compact", "POST")
            assert (status, begun["begins"]) == (202, "at the next request")
            assert len(toy.summaries) == calls
            await house.play(session, _SHAPE, first=30)
            await house.at_rest()
            assert len(toy.summaries) > calls


# Events.


async def read_block(stream: aiohttp.ClientResponse, passing: str = "") -> str:
    """The next one whose name is another; comments are passed over."""
    while True:
        async with asyncio.timeout(60):
            block = (await stream.content.readuntil(b"\n\n")).decode()
        if not block.startswith((f"event: {passing}\n", ":")):
            return block


async def test_events_arrive_while_they_happen(house: House) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    url = f"{house.product.admin_url}/api/events"
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert await stream.content.readuntil(b"\n\n") == b": listening\n\n"
        run = await house.play(make_session(30, 8), _SHAPE)
        blocks = [await read_block(stream, passing="activity") for _ in range(2)]
    names, data = zip(*(block.strip().split("\n") for block in blocks), strict=True)
    boundary, compacted = (json.loads(line.removeprefix("data: ")) for line in data)
    assert names == ("event: compact_boundary", "event: session.compacted")
    assert boundary["subtype"] == "compact_boundary"
    assert boundary["session_id"] == compacted["sessionID"] == run.conversation


async def test_conversations_that_change_are_told_while_somebody_listens(house: House) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    url = f"{house.product.admin_url}/api/v1/events"
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as stream:
        assert await stream.content.readuntil(b"\n\n") == b": listening\n\n"
        run = await house.play(make_session(2, 9), _SHAPE)
        told: dict[str, int] = {}
        while told.get(run.conversation) != len(run.answers):
            name, _, data = (await read_block(stream)).partition("\ndata: ")
            assert name == "event: activity"
            told |= {row["id"]: row["requests"] for row in json.loads(data)["conversations"]}


@pytest.mark.parametrize(
    ("change", "more", "clients"),
    [
        ("formats: [messages]", "", [("messages", "caller")]),
        ("formats: [chat], api_key: own", "", [("chat", "none")]),
        (
            "formats: [chat, responses]",
            "tenants: [{name: a, keys: [k]}]\n",
            [("chat", "tenant"), ("responses", "tenant")],
        ),
    ],
)
async def test_clients_are_told_where_to_go_and_with_which_key(
    change: str, more: str, clients: list[tuple[str, str]]
) -> None:
    async with ToyUpstream() as toy:
        settings = make_settings(toy, more=f"admin: {{port: 0}}\n{more}")
        async with serve(settings.replace("discover: false", f"discover: false, {change}")) as product:
            shown = await read(House(toy, product, "k"), "/v1/gateway")
            assert shown["data_url"] == product.root_url
    assert [(each["format"], each["key"]) for each in shown["clients"]] == clients
    assert (shown["token_required"], shown["texts"]) == (False, "policy")
