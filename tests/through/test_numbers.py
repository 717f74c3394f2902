"""What a conversation is said to have used and cost is what the upstream has counted, and what it charges."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.messages import Messages
from tests.toy.prefix_cache import PrefixCache
from tests.toy.product import serve
from tests.toy.reply import Reply
from tests.toy.responses import Responses
from tests.toy.running import Answer, Run
from tests.toy.upstream import ToyUpstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRICE = "{input: 2, cached: 0.5, write: 3, output: 8}"
MORE = "policies: {default: {economy: 0, summary: {ride: never}}}\n"
_SHAPE = Shape(max_tokens=1_000)
_ASKING = {"x-gateway-economics": "1"}


async def send(
    house: House, texts: Sequence[str], dialect: Dialect = CHAT, model: str = "toy-model", session: str = ""
) -> Answer:
    """One request: what user and model said in turn."""
    said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    name = "input" if dialect.path == "/responses" else "messages"
    body = {"model": model, name: said, dialect.output_key: 500}
    headers = dialect.headers(house.key) | _ASKING | ({"x-gateway-session": session} if session else {})
    answer = await house.post(dialect.path, body, **headers)
    assert answer.status == 200, answer.body
    return answer


async def read(house: House, path: str) -> Any:
    status, value = await house.admin(path)
    assert status == 200, value
    return value


async def read_row(house: House, answer: Answer) -> Any:
    await house.at_rest()
    return await read(house, f"/conversations/{answer.header('x-gateway-conversation')}")


async def read_metrics(house: House) -> dict[str, float]:
    """What is counted, by name and labels."""
    lines = [line for line in (await read(house, "/metrics")).splitlines() if not line.startswith("#")]
    rows = (line.rpartition(" ") for line in lines)
    return {name.replace("_total", "").removeprefix("gateway_"): float(value) for name, _, value in rows}


async def count_grown(house: House, before: dict[str, float]) -> dict[str, float]:
    after = await read_metrics(house)
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


async def play(house: House, turns: int, seed: int, first: int = 0, last: int | None = None) -> Run:
    run = await house.play(make_session(turns, seed), _SHAPE, first, last)
    assert run.failed == []
    await house.at_rest()
    return run


def make_usage(prompt: str, output: str) -> dict[str, object]:
    return {
        f"{prompt}_tokens": 9_000,
        f"{output}_tokens": 100,
        f"{prompt}_tokens_details": {"cached_tokens": 6_000},
    }


# Usage of a prompt of 9,000 tokens, 6,000 of them out of the cache, what is written there, and what it costs.
_SPLIT = {"cache_read_input_tokens": 6_000, "cache_creation_input_tokens": 2_000}
_USAGES: Sequence[tuple[Dialect, dict[str, object], int, float]] = (
    (CHAT, make_usage("prompt", "completion"), 0, 0.0098),
    (Responses(), make_usage("input", "output"), 0, 0.0098),
    (Messages(), {"input_tokens": 1_000, "output_tokens": 100, **_SPLIT}, 2_000, 0.0118),
)
_COUNTED = (
    *(f'usage_tokens{{kind="{kind}",tenant=""}}' for kind in ("prompt", "output", "cached")),
    'spent_usd{tenant=""}',
    *(f'compared_usd{{gateway="{way}",price="toy-*",tenant=""}}' for way in ("with", "without")),
)


@pytest.mark.parametrize(
    ("dialect", "usage", "written", "usd"), _USAGES, ids=["chat", "responses", "messages"]
)
async def test_a_request_costs_what_its_usage_says(
    house: House, dialect: Dialect, usage: dict[str, object], written: int, usd: float
) -> None:
    before = await read_metrics(house)
    house.toy.reply = lambda _: Reply(usage=usage)
    await send(house, ["Begin."], dialect)
    answer = await send(house, ["Begin.", "Understood.", "Go on."], dialect)
    row = await read_row(house, answer)
    economics = row["economics"]
    assert (row["requests"], row["prompt_tokens"], row["output_tokens"]) == (2, 9_000, 100)
    assert (economics["prompt_tokens"], economics["output_tokens"]) == (18_000, 200)
    assert (economics["cached_tokens"], economics["cache_write_tokens"]) == (12_000, 2 * written)
    assert row["spent_usd"] == economics["with_usd"] == economics["without_usd"] == pytest.approx(2 * usd)
    assert (row["saved_tokens"], row["saved_usd"], row["summary_usd"]) == (0, 0.0, None)
    assert row["total_sent_tokens"] == row["total_received_tokens"] == 18_000
    assert (economics["compared_requests"], economics["died"], row["died_at"]) == (2, 0, None)
    # Asked for, it is told to the client of what came before.
    told = answer.header("x-gateway-economics") or ""
    assert told.startswith("requests=1, received=9000, sent=9000, saved=0, prompt=9000, cached=6000, ")
    assert f"written={written}, output=100, " in told and f"spent_usd={usd:.6f}" in told
    # The same in metrics, where callers without a tenant are one.
    grown = await count_grown(house, before)
    assert {name: grown.get(name) for name in _COUNTED} == pytest.approx(
        {
            'usage_tokens{kind="prompt",tenant=""}': 18_000,
            'usage_tokens{kind="output",tenant=""}': 200,
            'usage_tokens{kind="cached",tenant=""}': 12_000,
            'spent_usd{tenant=""}': 2 * usd,
            'compared_usd{gateway="with",price="toy-*",tenant=""}': 2 * usd,
            'compared_usd{gateway="without",price="toy-*",tenant=""}': 2 * usd,
        }
    )
    assert grown.get('usage_tokens{kind="written",tenant=""}', 0.0) == 2 * written
    assert grown.get('tokens{kind="saved",tenant=""}', 0.0) == 0.0


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 10**30, "completion_tokens": 1}])
async def test_usage_that_is_not_told_or_that_no_model_has_is_not_invented(
    house: House, usage: dict[str, object] | None
) -> None:
    before = await read_metrics(house)
    house.toy.reply = lambda _: Reply(usage=usage, usage_shape="none")
    row = await read_row(house, await send(house, ["Begin."]))
    assert (row["requests"], row["prompt_tokens"], row["economics"]["prompt_tokens"]) == (1, 0, 0)
    assert (row["spent_usd"], row["economics"]["compared_requests"]) == (None, 0)
    assert 0 < row["sent_tokens"] == row["received_tokens"] < 1_000
    grown = {name for name, value in (await count_grown(house, before)).items() if value}
    assert not [name for name in grown if "usage_tokens" in name or "usd" in name]
    assert "responses_without_usage" in grown or usage is not None


_CACHED = 0.4


async def test_all_that_the_upstream_counted_is_in_the_sums(house: House) -> None:
    """Of an upstream that has a part of each prompt in its cache."""
    house.toy.cached_share = lambda _: _CACHED
    before = await read_metrics(house)
    run = await play(house, 40, 3)
    row = await read_row(house, run.answers[-1])
    sent, summaries = run.outgoing, run.summaries
    points = (await read(house, f"/v1/conversations/{row['id']}/requests"))["requests"]
    economics, totals = row["economics"], dict.fromkeys(("prompt", "completion", "cached"), 0)
    for answer in run.answers:
        usage = json.loads(answer.body)["usage"]
        totals["prompt"] += usage["prompt_tokens"]
        totals["completion"] += usage["completion_tokens"]
        totals["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
    assert totals["prompt"] == sum(seen.prompt_tokens for seen in sent) == economics["prompt_tokens"]
    assert totals["completion"] == economics["output_tokens"]
    assert row["total_sent_tokens"] == totals["prompt"]
    assert row["total_received_tokens"] == totals["prompt"] + row["saved_tokens"]
    assert 0 < totals["cached"] == economics["cached_tokens"]
    usd = (totals["prompt"] - totals["cached"]) * 2 + totals["cached"] * 0.5 + totals["completion"] * 8
    assert row["spent_usd"] == pytest.approx(usd / 1e6, abs=1e-6)
    # What was left out costs as much as what comes out of a cache, once there is known to be one.
    first = next(at for at, point in enumerate(points) if point["cached_tokens"])
    left_out = [point["received"] - point["sent"] for point in points]
    saved = sum(left_out[:first]) * 2 + sum(left_out[first:]) * 0.5
    assert row["saved_tokens"] == sum(left_out) > 0
    assert row["saved_usd"] == pytest.approx(saved / 1e6, abs=1e-6)
    # Each summary by what its call was answered.
    assert row["compactions"] == len(summaries) == economics["summary_calls"] >= 2
    assert row["requests"] == len(points) == len(sent)
    assert row["cache_breaks"] == economics["breaks"]["compaction"] >= 1
    called = sum(seen.prompt_tokens for seen in summaries)
    assert called < row["summary_tokens"] < 2 * called
    written = row["summary_tokens"] - called
    read_again = sum(int(_CACHED * seen.prompt_tokens) for seen in summaries)
    summary_usd = (called - read_again) * 2 + read_again * 0.5 + written * 8
    assert row["summary_usd"] == pytest.approx(summary_usd / 1e6, abs=1e-6)
    grown = await count_grown(house, before)
    expected = {
        'compactions{kind="summary",result="done"}': len(summaries),
        'summary_calls{result="done",way="quoted"}': len(summaries),
        'summary_tokens{kind="prompt",way="quoted"}': called,
        'summary_tokens{kind="output",way="quoted"}': written,
        'summary_usd{way="quoted"}': row["summary_usd"],
        "summaries_used": row["compactions"] - economics["unused_summaries"],
        'cache_breaks{change="compaction"}': row["cache_breaks"],
        'tokens{kind="saved",tenant=""}': row["saved_tokens"],
        'saved_usd{tenant=""}': row["saved_usd"],
        'compared_usd{gateway="with",price="toy-*",tenant=""}': economics["with_usd"],
        'compared_usd{gateway="without",price="toy-*",tenant=""}': economics["without_usd"],
        'conversations_died{tenant=""}': economics["died"],
        'priced_tokens{kind="prompt",price="toy-*"}': totals["prompt"],
        'priced_tokens{kind="cached",price="toy-*"}': totals["cached"],
        'priced_tokens{kind="output",price="toy-*"}': totals["completion"],
        'priced_usd{kind="requests",price="toy-*"}': row["spent_usd"],
        'priced_usd{kind="summaries",price="toy-*"}': row["summary_usd"],
        **{
            f'requests{{format="chat",plan="{name}",status="2xx"}}': run.plans.count(name)
            for name in run.plans
        },
        "estimate_ratio_count": len(sent),
        'upstream_seconds_count{upstream="default"}': len(sent),
    }
    assert {name: grown.get(name) for name in expected} == pytest.approx(expected, abs=1e-5)
    # A share of what was reported, so near 1.
    assert grown["estimate_ratio_sum"] == pytest.approx(len(sent), rel=0.05)


async def test_each_cause_of_a_broken_prefix_is_told_with_the_request_that_has_it(house: House) -> None:
    """A summary, and its text as a person has edited it."""
    session, path, newest = make_session(30, 5), "", None
    turn = 12
    while newest is None or not newest["in_use"]:
        run = await house.play(session, _SHAPE, turn, turn + 1)
        await house.at_rest()
        path = f"/v1/conversations/{run.conversation}"
        newest = next(iter((await read(house, f"{path}/summaries"))["summaries"]), None)
        turn += 1
    text = json.dumps({"text": "# Goal\nPort the storage layer.\n\nWe have looked at all files."}).encode()
    assert (await house.admin(f"{path}/summaries/{newest['key']}", "PUT", text))[0] == 200
    await house.play(session, _SHAPE, turn, turn + 1)
    await house.at_rest()
    points = (await read(house, f"{path}/requests"))["requests"]
    assert [point["change"] for point in points] == [*[None] * (turn - 13), "compaction", "edit"]
    breaks = (await read(house, path))["economics"]["breaks"]
    assert breaks == {"compaction": 1, "pruning": 0, "edit": 1, "history": 0}


async def test_the_first_request_of_a_branch_is_compared_with_what_it_left(house: House) -> None:
    begun = ["Port it.", "Understood.", "Go on."]
    await send(house, begun)
    whole = await read_row(house, await send(house, [*begun, "Understood.", "To the left."]))
    branch = await read_row(house, await send(house, [*begun, "Understood.", "To the right."]))
    assert branch["parent"] == whole["id"]
    assert branch["economics"]["breaks"]["history"] == branch["cache_breaks"] == 1
    alone = await read_row(house, await send(house, ["Another task altogether."]))
    assert (alone["parent"], alone["cache_breaks"], whole["cache_breaks"]) == (None, 0, 0)
    # A provider's cache is one of a model.
    more = [*begun, "Understood.", "To the left.", "Understood.", "Go on."]
    other = await read_row(house, await send(house, more, model="toy-other"))
    assert (other["id"], other["model"], other["requests"]) == (whole["id"], "toy-other", 3)
    assert other["economics"]["breaks"]["history"] == 1


async def test_a_summary_that_is_thrown_away_was_paid_for(house: House) -> None:
    house.toy.summary = lambda _: Reply(text="No.", finish_reason="length")
    run = await play(house, 24, 7)
    row = await read_row(house, run.answers[-1])
    # The last one begins behind the last response.
    calls = [seen for seen in house.toy.summaries if seen.status == 200]
    prompts = sum(seen.prompt_tokens for seen in calls)
    assert row["economics"]["summary_calls"] == len(calls) > 0
    assert row["summary_tokens"] > prompts and row["summary_usd"] >= 2 * prompts / 1e6
    made = (await read(house, f"/v1/conversations/{row['id']}/summaries"))["summaries"]
    assert {each["kind"] for each in made} <= {"digest"} and row["compactions"] == len(made)


# Which price holds.


_PRICES = """
store: "memory:"
admin: {port: 0, token: toy-admin}
upstreams:
  one: {base_url: "URL", discover: false}
  two: {base_url: "URL", discover: false}
tenants:
  - {name: plain, keys: [sk-plain], upstream: one}
  - {name: away, keys: [sk-away], upstream: two}
  - {name: own, keys: [sk-own], upstream: one, models: [{match: "m", price: {input: 3, output: 3}}]}
models:
  - {match: "m", upstream: two, price: {input: 2, output: 2}}
  - {match: "m", price: {input: 1, output: 1}}
  - {match: "gpt-4o-mini", price: {input: 7, output: 7}}
  - {match: "*", context: 64000}
  - {match: "gpt-4o*", price: {input: 9, cached: 0, output: 9}}
"""
_HALF = {"prompt_tokens_details": {"cached_tokens": 500_000}}
_MILLION = {"prompt_tokens": 1_000_000, "completion_tokens": 100_000, **_HALF}


async def test_the_first_price_that_fits_holds_a_tenants_own_first_and_the_bundled_table_last() -> None:
    cases = [
        ("sk-plain", "m", 1.1),
        ("sk-away", "m", 2.2),
        ("sk-own", "m", 3.3),
        ("sk-plain", "gpt-4o-mini", 7.7),
        ("sk-plain", "gpt-4o-2024-08-06", 5.4),
        # Bundled: 2.5 and 10, out of the cache 1.25, are not looked up where a rule has a price.
        ("sk-plain", "openai/gpt-4o", 2.875),
        ("sk-plain", "anthropic.claude-sonnet-4-5", 3.15),
        ("sk-plain", "qwen-plus", 0.52),
        ("sk-plain", "llama3.1:8b", None),
        ("sk-plain", "_source", None),
    ]
    async with ToyUpstream() as toy, serve(_PRICES.replace("URL", toy.base_url)) as product:
        toy.reply = lambda _: Reply(usage=_MILLION)
        for number, (key, model, usd) in enumerate(cases):
            house = House(toy, product, key)
            row = await read_row(house, await send(house, [f"Task {number}."], model=model))
            assert row["model"] == model
            assert row["spent_usd"] == (pytest.approx(usd) if usd is not None else None), (key, model)
        totals = {each["tenant"]: each for each in (await read(house, "/v1/totals"))["tenants"]}
        assert totals["own"]["spent_usd"] == pytest.approx(3.3)
        # Another price holds for what comes, and what was spent stays.
        changed = _PRICES.replace("URL", toy.base_url).replace(
            "{input: 1, output: 1}", "{input: 5, output: 5}"
        )
        await product.reload(changed)
        house = House(toy, product, "sk-plain")
        answer = await send(house, ["Task 0.", "Understood.", "Go on."], model="m")
        assert (await read_row(house, answer))["spent_usd"] == pytest.approx(1.1 + 5.5)


# What is known after a restart.


async def read_all(house: House, identity: str) -> Any:
    """Once what conversations did has been read by a start. Without what is of this process."""
    async with asyncio.timeout(30):
        while (await house.admin(f"/conversations/{identity}"))[0] != 200:
            await asyncio.sleep(0.02)
    path = f"/v1/conversations/{identity}"
    page = await read(house, path)
    own = {name: page.pop(name) for name in ("body_in_memory", "growth_tokens")}
    assert own
    return [page, await read(house, f"{path}/requests"), await read(house, f"{path}/summaries")]


def settings_of(toy: ToyUpstream, store: str, more: str = "") -> str:
    return make_settings(toy, store=store, price=PRICE, more=ADMIN + MORE + more)


async def test_all_numbers_are_the_same_after_a_restart_and_go_on(store_url: str) -> None:
    async with ToyUpstream(window=16_000) as toy:
        toy.cached_share = PrefixCache().read
        settings = settings_of(toy, store_url)
        async with serve(settings) as product:
            house = House(toy, product, "sk-a")
            run = await play(house, 32, 3, 0, 28)
            before = await read_all(house, run.conversation)
            sums = await read(house, "/v1/totals")
        async with serve(settings) as product:
            house = House(toy, product, "sk-a")
            after = await read_all(house, run.conversation)
            # Money is added up in another order where processes share a store.
            assert json.dumps(after) == json.dumps(before)
            assert await read(house, "/v1/totals") == sums
            await play(house, 32, 3, 28, 30)
        async with serve(settings) as product:
            # A request may come before what is stored has been read.
            house = House(toy, product, "sk-a")
            await play(house, 32, 3, 30, 32)
            page, listed, _ = await read_all(house, run.conversation)
        async with serve(settings) as product:
            assert (await read_all(House(toy, product, "sk-a"), run.conversation))[:2] == [page, listed]
    assert page["requests"] == len(listed["requests"]) == len(toy.chats) == 32
    assert [each["prompt_tokens"] for each in listed["requests"]] == [
        seen.prompt_tokens for seen in toy.chats
    ]
    assert page["economics"]["summary_calls"] == len(toy.summaries)
    assert page["economics"]["prompt_tokens"] == sum(seen.prompt_tokens for seen in toy.chats)


async def test_the_conversations_that_are_idle_for_longest_make_room_in_memory_and_in_the_store(
    tmp_path: Path,
) -> None:
    more = "cache: {activity_bytes: 40000}\n"
    async with ToyUpstream() as toy:
        settings = settings_of(toy, f"disk:{tmp_path}/state", more)
        async with serve(settings) as product:
            house = House(toy, product, "sk-a")
            for number in range(40):
                busy = ["Busy.", *["Understood.", "Go on."] * number]
                await send(house, busy, session="busy")
                newest = await send(house, [f"Task {number}."], session=f"s{number}")
            await read_row(house, newest)
            kept = [
                row["session"] for row in (await read(house, "/v1/conversations?limit=500"))["conversations"]
            ]
        assert kept[0] == "s39" and "busy" in kept and "s0" not in kept and 5 < len(kept) < 40
        async with serve(settings) as product:
            house = House(toy, product, "sk-a")
            await read_all(house, newest.header("x-gateway-conversation") or "")
            rows = (await read(house, "/v1/conversations?limit=500"))["conversations"]
    assert [row["session"] for row in rows] == kept
    assert next(row for row in rows if row["session"] == "busy")["requests"] == 40
