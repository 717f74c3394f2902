"""What is told of a compaction while it happens, and what its log says afterwards."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.house import ADMIN, ADMIN_TOKEN, House, make_settings
from tests.toy.product import Product, serve
from tests.toy.running import Run, wait_until
from tests.toy.upstream import ToyUpstream

JSON = dict[str, Any]
_SHAPE = Shape(max_tokens=1_000)
_BY_SIZE = "policies: {default: {economy: 0, compaction: {prune: false}}}\n"
_PRUNES = "policies: {default: {pruning: {eager: true, protect_tokens: 1500, minimum_tokens: 1000}}}\n"
_KEYS = {
    *("when", "kind", "trigger", "reason", "outcome", "pre_tokens", "post_tokens", "messages"),
    *("summary_tokens", "model", "calls", "seconds"),
}
_FAILED = RawAnswer(status=500, pieces=(b'{"error": "CANARY of an upstream"}',))


@dataclass
class Heard:
    """What a listener was told, in order, but for the rows of conversations."""

    events: list[tuple[str, JSON]] = field(default_factory=list)

    def list(self, name: str) -> list[JSON]:
        return [event for each, event in self.events if each == name]


@asynccontextmanager
async def listening(product: Product) -> AsyncIterator[Heard]:
    headers, heard = {"Authorization": f"Bearer {ADMIN_TOKEN}"}, Heard()
    url = f"{product.admin_url}/api/v1/events"
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as stream:
        assert await stream.content.readuntil(b"\n\n") == b": listening\n\n"

        async def listen() -> None:
            while True:
                block = (await stream.content.readuntil(b"\n\n")).decode()
                name, _, data = block.partition("\ndata: ")
                if name not in ("event: activity", ":"):
                    heard.events.append((name.removeprefix("event: "), json.loads(data)))

        listener = asyncio.create_task(listen())
        yield heard
        listener.cancel()


@asynccontextmanager
async def open_house(
    toy: ToyUpstream, more: str = _BY_SIZE, models: str = "toy-*", store: str = "memory:"
) -> AsyncIterator[House]:
    """models: those whose window is known."""
    settings = make_settings(toy, store=store, more=ADMIN + more).replace('"toy-*"', f'"{models}"')
    async with serve(settings) as product:
        yield House(toy, product, "sk-a")


async def play(house: House, turns: int, seed: int = 3, first: int = 0, last: int | None = None) -> Run:
    run = await house.play(make_session(turns, seed), _SHAPE, first, last)
    assert run.failed == []
    await house.at_rest()
    return run


async def read_log(house: House, run: Run) -> list[JSON]:
    """The oldest first."""
    status, page = await house.admin(f"/v1/conversations/{run.conversation}/log")
    assert status == 200, page
    return list(reversed(page["log"]))


async def compact(house: House, run: Run) -> None:
    assert (await house.admin(f"/conversations/{run.conversation}/compact", "POST"))[0] == 202
    await house.at_rest()


def list_texts(events: Sequence[JSON]) -> set[str]:
    return {value for event in events for value in event.values() if isinstance(value, str)}


@pytest.mark.system(8)
async def test_each_compaction_is_told_as_a_boundary_and_in_full_to_every_listener() -> None:
    async with ToyUpstream(window=16_000) as toy, open_house(toy) as house, AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(listening(house.product)) for _ in range(2)]
        run = await play(house, 30)
        log = await read_log(house, run)
        await wait_until(lambda: len(one.events) == len(other.events) == 2 * len(log))
    assert one.events == other.events and len(toy.summaries) == len(log) >= 2
    boundaries, told = one.list("compact_boundary"), one.list("session.compacted")
    for boundary, event, entry in zip(boundaries, told, log, strict=True):
        assert uuid.UUID(boundary.pop("uuid")).version == 4
        assert boundary == {
            "type": "system",
            "subtype": "compact_boundary",
            "compact_metadata": {"trigger": "auto", "pre_tokens": entry["pre_tokens"]},
            "session_id": run.conversation,
        }
        assert event == {
            "type": "session.compacted",
            "sessionID": run.conversation,
            "tenant": event["tenant"],
            "kind": "summary",
            "trigger": "auto",
            "reason": entry["reason"],
            "pre_tokens": entry["pre_tokens"],
            "post_tokens": entry["post_tokens"],
            "covers": entry["messages"],
        }
        # As the upstream counts: after a response between the soft line and the window.
        assert 8_000 <= event["pre_tokens"] <= 16_000
        assert 0 < entry["summary_tokens"] < event["post_tokens"] < event["pre_tokens"]
        assert entry.keys() == _KEYS and entry["seconds"] >= 0
        assert (entry["outcome"], entry["model"], entry["calls"]) == ("done", "toy-model", 1)
        # A tenant without a name is shown by the beginning of its hash.
        assert event["tenant"].startswith("key:") and len(event["tenant"]) == len("key:") + 12
    covers = [entry["messages"] for entry in log]
    assert covers == sorted(set(covers))
    assert [entry["when"] for entry in log] == sorted(entry["when"] for entry in log)


async def test_refusals_failures_and_digests_are_told_in_numbers_and_without_a_text() -> None:
    async with ToyUpstream(window=16_000) as toy, open_house(toy, "", "another-*") as house:
        toy.summary_failures = [_FAILED] * 2
        async with listening(house.product) as heard:
            run = await play(house, 60)
            log = await read_log(house, run)
            await wait_until(lambda: len(heard.list("session.compacted")) > len(toy.summaries) - 3)
    overflow, failed = heard.list("overflow")[0], heard.list("compaction_failed")[0]
    first = next(seen for seen in run.outgoing if seen.refusal)
    assert (overflow["kind"], overflow["retried"], overflow["context"]) == ("tokens", True, 16_000)
    assert overflow["used"] == first.prompt_tokens + 1_000 or overflow["input"] == first.prompt_tokens
    assert overflow["sent_tokens"] == pytest.approx(first.prompt_tokens, rel=0.2)
    assert (failed["kind"], failed["reason"], failed["trigger"]) == ("summary", "status 500", "auto")
    assert {event["kind"] for event in heard.list("session.compacted")} == {"summary", "digest"}
    assert [entry["outcome"] for entry in log].count("done") == len(heard.list("session.compacted"))
    unsuccessful = next(entry for entry in log if entry["outcome"] != "done")
    assert (unsuccessful["outcome"], unsuccessful["kind"], unsuccessful["calls"]) == (
        "status 500",
        "summary",
        2,
    )
    assert (unsuccessful["post_tokens"], unsuccessful["model"]) == (None, "toy-model")
    assert unsuccessful["messages"] > 0
    # The texts of the session are made of words. Ids, names and numbers are not.
    events = [event for _, event in heard.events]
    texts = list_texts(events) | list_texts(log)
    assert all(len(text) <= 40 and text.count(" ") <= 1 for text in texts)
    assert not any(fact.token in str(texts) for fact in make_session(60, 3).facts) and "CANARY" not in str(
        texts
    )
    assert {event["tenant"] for event in events if "tenant" in event} == {overflow["tenant"]}


async def test_a_pruning_is_told_and_logged_once() -> None:
    async with ToyUpstream(window=64_000) as toy, open_house(toy, _PRUNES) as house:
        async with listening(house.product) as heard:
            run = await play(house, 16)
            log = await read_log(house, run)
            await wait_until(lambda: len(heard.events) == len(log))
        lists = (await house.admin(f"/v1/conversations/{run.conversation}/originals"))[1]["taken"]
        row = (await house.admin(f"/v1/conversations/{run.conversation}"))[1]
        listed = (await house.admin(f"/v1/conversations/{run.conversation}/requests"))[1]
        points = [point["change"] for point in listed["requests"]]
        _, metrics = await house.admin("/metrics")
    prunings = heard.list("pruned")
    assert 0 < len(prunings) == len(log) == row["prunings"] < run.plans.count("pruned")
    assert f"gateway_prunings_total {len(prunings)}.0" in metrics
    for event, entry, taken in zip(prunings, log, reversed(lists), strict=True):
        assert event["marks"] == entry["messages"] == len(taken["messages"])
        assert event["session_id"] == run.conversation and taken["kind"] == entry["kind"] == "prune"
        assert event["saved_tokens"] == entry["pre_tokens"] - entry["post_tokens"] > 0
        assert (entry["model"], entry["calls"], entry["outcome"]) == (None, 0, "done")
    assert points.count("pruning") == len(prunings)


async def test_a_manual_compaction_is_logged_also_with_nothing_to_fold() -> None:
    async with ToyUpstream() as toy, open_house(toy) as house, listening(house.product) as heard:
        short = await play(house, 1)
        assert await read_log(house, short) == []
        await compact(house, short)
        (nothing,) = await read_log(house, short)
        long = await play(house, 14, seed=4)
        await compact(house, long)
        (done,) = await read_log(house, long)
        await wait_until(lambda: len(heard.events) == 3)
    assert (nothing["outcome"], nothing["trigger"], nothing["reason"]) == (
        "nothing to fold",
        "manual",
        "manual",
    )
    assert (nothing["pre_tokens"], nothing["post_tokens"], nothing["calls"]) == (None, None, 0)
    assert (done["outcome"], done["trigger"], done["reason"]) == ("done", "manual", "manual")
    (failed,) = heard.list("compaction_failed")
    assert (failed["reason"], failed["trigger"]) == ("nothing to fold", "manual")
    (boundary,) = heard.list("compact_boundary")
    assert boundary["compact_metadata"] == {"trigger": "manual", "pre_tokens": done["pre_tokens"]}


async def test_the_newest_hundred_entries_are_shown() -> None:
    async with ToyUpstream() as toy, open_house(toy) as house:
        run, other = await play(house, 14, last=1), await play(house, 1, seed=4)
        path = f"/conversations/{run.conversation}/compact"
        for number in range(104):
            assert (await house.admin(path, "POST"))[0] == 202, number
            await house.at_rest()
        assert (await play(house, 14, first=1)).conversation == run.conversation
        await compact(house, run)
        log = await read_log(house, run)
        assert await read_log(house, other) == []
    assert [entry["outcome"] for entry in log] == [*["nothing to fold"] * 99, "done"]


async def test_a_later_process_adds_to_the_log_that_it_finds(store_url: str) -> None:
    async with ToyUpstream(window=16_000) as toy:
        async with open_house(toy, store=store_url) as house:
            run = await play(house, 34, last=28)
            before = await read_log(house, run)
        async with open_house(toy, store=store_url) as house:
            assert await read_log(house, run) == before
            run = await play(house, 34, first=28)
            await compact(house, run)
            after = await read_log(house, run)
    assert before and after[: len(before)] == before and len(after) > len(before)
    assert after[-1]["trigger"] == "manual"


# A window that is too small to work in.


async def test_a_small_window_is_in_every_answer_and_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = make_session(14, 3)
    async with ToyUpstream(window=4_600) as toy, open_house(toy) as house:
        first = await house.play(session, Shape())
        again = await House(toy, house.product, "sk-b").play(session, Shape(), 0, 4)
    for run in (first, again):
        warnings = [answer.header("x-gateway-warning") for answer in run.answers]
        assert "window" in (warnings[-1] or "")
    said = [record.getMessage() for record in caplog.records if "window" in record.getMessage()]
    ids = [message.partition(":")[0] for message in said]
    # Of each tenant once, whatever its conversations.
    assert len(ids) == len(set(ids)) == 2
