"""The whole demo, and what it says if something goes wrong."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from gateway.demo.agent import FILES, TurnReport, read_file
from gateway.demo.play import find_problems, run_demo

ALL_FINDINGS = "".join(read_file(f"src/part_{number:02}.py") for number in range(1, FILES + 1))
DONE = TurnReport(50, 10_000, 200, {"x-gateway-plan": "pivot"}, ALL_FINDINGS)
REFUSED = TurnReport(42, 9_000, 400, {}, "maximum context length")


def read_excerpt() -> list[str]:
    """What README shows of the demo's output, without numbers: these may change."""
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    shown = re.search(r"^```\n( +agent sends .*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert shown is not None
    return [_normalize(line).removesuffix(" ...") for line in shown[1].splitlines() if line != "..."]


def _normalize(text: str) -> str:
    return re.sub(r"[ ]+", " ", re.sub(r"conversation=\w+|[\d,.]*\d", "#", text))


async def test_the_demo_shows_a_compaction_and_what_happens_without_it() -> None:
    lines: list[str] = []
    level = logging.getLogger("gateway.compactor").level
    assert await run_demo(lines.append)
    text = "\n".join(lines)
    turns = re.findall(r"^ +(\d+) +(\d+) +([\d,]+) +(\d+) +([\d,]+)  (\S+) +[█░]{20}$", text, re.MULTILINE)
    assert [int(turn[0]) for turn in turns] == list(range(1, FILES + 2))
    assert turns[0][5] == "passthrough" and turns[-1][5] in ("pivot", "pivot+pruned")
    # The agent's history grows to the end, and the model gets less of it.
    assert int(turns[-1][1]) == 2 + 2 * FILES > int(turns[-1][3])
    assert re.search(r"log: INFO gateway\.compactor compacted covers=\d+ of=\d+\n", text)
    assert f"{FILES} of {FILES} findings" in text
    first = next(turn[0] for turn in turns if turn[5].startswith("pivot"))
    assert f"From turn {first} on, the model got a summary" in text
    refusal = re.search(r"refused in turn (\d+)", text)
    assert refusal is not None and int(refusal[1]) < len(turns)
    assert "maximum context length is 8192 tokens" in lines[-2]
    assert re.match(r"[+−]\$\d+\.\d+ (saved|more spent): \$.* without the gateway, \$.* with it", lines[-1])
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"http://127\.0\.0\.1:\d+/\n", text)
    for line in read_excerpt():
        assert line in _normalize(text), line
    # Other users of the log in this process see what they saw before.
    assert logging.getLogger("gateway.compactor").level == level
    assert logging.getLogger("gateway.compactor").handlers == []


def test_each_broken_promise_is_named() -> None:
    assert find_problems([DONE], [REFUSED]) == []
    cases = (
        ([replace(DONE, status=400, text="too long")], [REFUSED], "refused: too long"),
        ([replace(DONE, headers={"x-gateway-plan": "digest"})], [REFUSED], "no summary was used"),
        ([replace(DONE, text="Finding 1")], [REFUSED], "the answer lacks findings"),
        ([DONE], [DONE], "nothing was refused"),
    )
    for through, direct, expected in cases:
        assert expected in "; ".join(find_problems(through, direct))


async def test_the_page_stays_open_as_long_as_somebody_looks() -> None:
    lines: list[str] = []
    seen: list[Any] = []

    async def look() -> None:
        found = re.search(r"stays open: (http://\S+/)", lines[-1])
        assert found is not None
        async with aiohttp.ClientSession(found[1]) as client:
            async with client.get("/") as page:
                assert page.status == 200 and "text/html" in page.headers["content-type"]
            async with client.get("/api/v1/conversations") as listing:
                (row,) = (await listing.json())["conversations"]
            async with client.get(f"/api/v1/conversations/{row['id']}") as shown:
                seen.append(await shown.json())

    assert await run_demo(lines.append, keep=look)
    (found,) = seen
    assert found["compactions"] >= 1 and found["texts"]["allowed"]
    assert found["title"].startswith("Review the storage layer")
    # The demo's session costs less with the gateway than without it, as far as that would have come.
    economics = found["economics"]
    assert 0 < economics["with_usd"] < economics["without_usd"] and found["died_at"] > 0
