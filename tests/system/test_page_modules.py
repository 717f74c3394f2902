"""Modules of the page that only make values of values, called in the browser."""

import json
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from tests.system.page import opened, requires_chromium

pytestmark = [requires_chromium, pytest.mark.asyncio(loop_scope="module")]


async def call(page: Page, module: str, expression: str) -> Any:
    """What the expression gives, in which `m` is the module."""
    return await page.evaluate(
        f"async () => {{ const m = await import('/app/{module}'); return {expression}; }}"
    )


async def test_every_message_stands_in_one_row_in_order(browser: Browser) -> None:
    fates = ["sent", "folded", "folded", "cleared", "sent", "gone"]
    received: list[dict[str, object]] = [{"position": None, "fate": "sent"}]
    received += [{"position": place, "fate": fate} for place, fate in enumerate(fates)]
    kinds = [
        (None, "message"),
        (0, "message"),
        (None, "question"),
        (None, "summary"),
        (3, "cleared"),
        (4, "message"),
    ]
    sent = [{"position": position, "kind": kind} for position, kind in kinds]
    async with opened(browser) as (_, _, page):
        arrays = f"{json.dumps(received)}, {json.dumps(sent)}"
        rows = await call(page, "alignment.js", f"m.alignArrays({arrays})")
        kept = await call(page, "alignment.js", f"m.keepChanges(m.alignArrays({arrays}))")
    assert [row["kind"] for row in rows] == ["same", "same", "replaced", "reduced", "same", "replaced"]
    assert [entry["place"] for entry in rows[2]["received"]] == [2, 3]
    assert [entry["kind"] for entry in rows[2]["sent"]] == ["question", "summary"]
    assert [entry["fate"] for entry in rows[5]["received"]] == ["gone"] and rows[5]["sent"] == []
    assert [row["kind"] for row in kept] == ["skipped", "replaced", "reduced", "skipped", "replaced"]
    assert kept[0]["count"] == 2


async def test_what_a_conversation_cost_is_said_in_words(browser: Browser) -> None:
    economics = {
        "breaks": {"compaction": 2, "pruning": 0, "edit": 1, "history": 0},
        "prompt_tokens": 1_000,
        "cached_tokens": 880,
        "summary_calls": 2,
        "riding_calls": 1,
        "unused_summaries": 1,
        "compared_requests": 44,
        "with_usd": 3.1,
        "without_usd": 5.2,
        "died": 1,
    }
    row = {
        "compactions": 2,
        "cache_breaks": 3,
        "spent_usd": 4.1,
        "summary_usd": 0.39,
        "summary_tokens": 9,
        "economics": economics,
    }
    free = {"compared_requests": 0, "summary_calls": 0, "with_usd": None, "without_usd": None}
    unknown = {"cache_breaks": 0, "economics": {**economics, **free}}
    dearer = {**row, "economics": {**economics, "with_usd": 5.25, "died": 0}}
    async with opened(browser) as (_, _, page):
        one, nothing = [
            await call(page, "economics.js", f"m.listCostFigures({json.dumps(each)})")
            for each in (row, unknown)
        ]
        saved = [
            await call(page, "economics.js", f"m.makeSavedFigure({json.dumps(each)})")
            for each in ({**row, "died_at": 45}, row, unknown, dearer)
        ]
        both = await call(page, "rows.js", f"m.sumTotals({json.dumps([row, row])})")
    same = "$5.20 without the gateway, $3.10 with it, estimated for 44 requests"
    assert one == [
        ["Cached", "88 %", "of 1k prompt tokens"],
        ["Cache breaks", "3", "2 compactions, 1 edited summary"],
        ["Unused summaries", "1", "of 2 compactions: prepared, or made in vain"],
        ["Spent", "$4.10", "and $0.39 on 2 summary calls, 1 riding"],
    ]
    assert nothing[3][1:] == ["–", "no summary calls"]
    assert saved == [
        ["Saved", "+$2.10", f"{same}; request 45 would not fit"],
        ["Saved", "+$2.10", f"{same}; 1 conversation would have ended"],
        ["Saved", "–", "no price or no usage known"],
        ["Saved", "−$0.05", same.replace("$3.10", "$5.25")],
    ]
    assert (both["economics"]["died"], both["economics"]["breaks"]["edit"]) == (2, 2)


async def test_events_are_read_wherever_their_bytes_are_cut(browser: Browser) -> None:
    stream = ': listening\n\nevent: pruned\ndata: {"marks": 2}\n\n: keep-alive\n\n'
    stream += "event: x\ndata: [1]\n\nevent: y\n"
    async with opened(browser) as (_, _, page):
        for cut in (0, 5, 20, 33, 34, len(stream)):
            pieces = json.dumps([stream[:cut], stream[cut:]])
            events = await call(
                page, "events.js", f"(p => {pieces}.flatMap(x => p.push(x)))(new m.EventParser())"
            )
            assert events == [{"name": "pruned", "data": {"marks": 2}}, {"name": "x", "data": [1]}], cut


async def test_numbers_are_short_and_unknown_ones_a_dash(browser: Browser) -> None:
    async with opened(browser) as (_, _, page):
        values = "[0, 950, 1000, 12345, 99960, 999600, 1250000, null]"
        tokens = await call(page, "format.js", f"{values}.map(m.formatTokens)")
        money = await call(page, "format.js", "[0, 0.00001, 0.0042, 1.5, -2, 12345, null].map(m.formatUsd)")
    assert tokens == ["0", "950", "1k", "12.3k", "100k", "1M", "1.25M", "–"]
    assert money == ["$0", "<$0.0001", "$0.0042", "$1.50", "−$2.00", "$12,345", "–"]


async def test_messages_of_every_format_become_texts(browser: Browser) -> None:
    messages = [
        {"role": "user", "content": "Hi."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "ok"}]}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}]},
        {"type": "function_call_output", "output": "done"},
        {"type": "function_call", "name": "ls", "arguments": "{}"},
        {"type": "new_thing", "payload": 1},
    ]
    async with opened(browser) as (_, _, page):
        blocks = await call(page, "message-text.js", f"{json.dumps(messages)}.map(m.readBlocks)")
        pieces = await call(page, "text-block.js", "m.splitText('ab\\u{1f600}cd', 3)")
    found = [[(block["label"], block["text"]) for block in each] for each in blocks]
    assert found[:6] == [
        [("", "Hi.")],
        [("Call of ls", "{}")],
        [("Result", "ok")],
        [("Reasoning", "Hm.")],
        [("", "done")],
        [("Call of ls", "{}")],
    ]
    assert json.loads(found[6][0][1]) == messages[6]
    # No character is cut in two.
    assert pieces == ["ab", "😀c", "d"]


async def test_lines_of_a_diff_are_told_apart(browser: Browser) -> None:
    async with opened(browser) as (_, _, page):
        text = r"`--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n c\n\n--- d\n${'e'.repeat(3000)}\n`"
        lines = await call(page, "diffs.js", f"m.readLines({text})")
        rows = await call(
            page, "rows.js", "m.mergeRows([{id: 1, title: 'x'}, {id: 2}], [{id: 1, title: null, n: 2}]).rows"
        )
    kinds = ["place", "place", "place", "removed", "added", "same", "same", "removed", "same"]
    assert [line["kind"] for line in lines] == kinds
    assert len(lines[-1]["text"]) == 2_001
    assert rows == [{"id": 1, "title": "x", "n": 2}, {"id": 2}]
