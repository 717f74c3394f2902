"""The pictures of README and docs/page.md, made anew by `make screenshots`: into the folder that is named."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import aiohttp
from playwright.async_api import Browser, Page, expect

from tests.system.page import Look, looking, opened, running_chromium
from tests.toy.agent import Session, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Request
from tests.toy.house import make_settings
from tests.toy.prefix_cache import PrefixCache
from tests.toy.product import Product, serve
from tests.toy.reply import Reply
from tests.toy.running import Pace, run_session
from tests.toy.summarising import make_summary
from tests.toy.upstream import ToyUpstream

_MOST_BYTES = 150_000
_PRICE = "{input: 2.5, cached: 0.25, output: 10}"
_SETTINGS = """
admin: {port: 0}
policies: {default: {show_texts: true}}
tenants:
  - {name: payments, keys: [sk-payments]}
  - {name: research, keys: [sk-research]}
"""
_WINDOW = 64_000


class CachedUpstream:
    """What an upstream with a prompt cache answers in one conversation: a call that rides reads it, too."""

    def __init__(self, toy: ToyUpstream, goal: str) -> None:
        self._counter, self._cache, self._goal = toy.counter, PrefixCache(), goal
        toy.cached_share, toy.summary = self._cache.read, self._summarize

    def _summarize(self, request: Request) -> Reply:
        share = self._cache.read(request) if request.get("tools") else 0.0
        cached_tokens = int(share * CHAT.count(self._counter, request))
        reply = make_summary(request, self._counter, None)
        text = (reply.text or "").replace("We followed the task.", f"{self._goal}.")
        return replace(reply, text=text, cached_tokens=cached_tokens)


def name_task(session: Session, goal: str) -> Session:
    """The session with this task instead of the one that all of them have."""
    (task,) = session.opening
    text = str(task["content"]).replace("Task: port the storage layer.", f"{goal}.\n")
    return replace(session, opening=({**task, "content": text},))


async def save(page: Page, name: str) -> None:
    path = Path(sys.argv[1]) / f"{name}.png"
    await page.mouse.move(0, 0)
    await page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size < _MOST_BYTES


async def settle(page: Page, name: str) -> None:
    """Returns once everything of the picture is there, and scrolled to."""
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    if name.startswith("overview"):
        await expect(page.get_by_role("link", name="port-storage-layer")).to_be_visible()
        return
    await expect(page.get_by_role("list", name="Messages, as received")).to_be_visible()
    if name == "messages":
        heading = page.get_by_role("heading", name="What was received, and what was sent")
        await heading.evaluate("heading => scrollTo(0, heading.getBoundingClientRect().top - 60)")


async def work(gateway: Product, toy: ToyUpstream, session: Session, tenant: str, label: str) -> str:
    """One request at a time: what is made in the background is ready for the next, as with a real model."""
    goal = label.replace("-", " ").capitalize()
    CachedUpstream(toy, goal)
    session, conversation = name_task(session, goal), ""
    for turn in range(len(session)):
        pace = Pace(key=f"sk-{tenant}", headers={"x-session-id": label}, first=turn, last=turn + 1)
        run = await run_session(session, gateway.base_url, toy, pace=pace)
        assert run.failed == []
        await gateway.at_rest()
        conversation = run.conversation
    return conversation


async def check_money(gateway: Product, conversation: str) -> None:
    """The pictures show what the gateway is for: a long session that costs less than without it."""
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{gateway.admin_url}/api/v1/conversations") as response,
    ):
        rows = (await response.json())["conversations"]
    (shown,) = [row for row in rows if row["id"] == conversation]
    assert shown["died_at"] > 0 and shown["compactions"] > 3
    for group in ([shown], rows):
        money = [row["economics"] for row in group]
        assert sum(each["with_usd"] or 0.0 for each in money) < sum(
            each["without_usd"] or 0.0 for each in money
        )


async def show_first_visit(browser: Browser) -> None:
    async with opened(browser, Look(height=620)) as (_, _, page):
        await expect(page.get_by_role("heading", name="Waiting for the first request")).to_be_visible()
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        await save(page, "first-visit")


async def show_overview_and_conversation(browser: Browser) -> None:
    sessions = (
        ("research", "survey-of-retries", make_session(8, 5)),
        ("payments", "fix-flaky-tests", make_session(40, 5)),
        ("research", "compare-search-indexes", make_session(90, 7, "many_users")),
        ("payments", "upgrade-http-client", make_session(3, 8)),
        ("payments", "port-storage-layer", make_session(150, 3)),
    )
    async with (
        ToyUpstream(window=_WINDOW) as toy,
        serve(make_settings(toy, price=_PRICE, more=_SETTINGS)) as gateway,
    ):
        seen = {
            label: f"#/conversations/{await work(gateway, toy, session, tenant, label)}"
            for tenant, label, session in sessions
        }
        one = seen["port-storage-layer"]
        await check_money(gateway, one.rpartition("/")[2])
        for name, look in (
            ("overview", Look(height=700)),
            ("overview-narrow", Look(width=390, height=844)),
            ("conversation", Look(path=one, height=1000)),
            ("conversation-dark", Look(path=one, height=1000, scheme="dark")),
            ("messages", Look(path=seen["fix-flaky-tests"], height=700)),
        ):
            async with looking(browser, gateway.admin_port, look) as page:
                await settle(page, name)
                await save(page, name)


async def main() -> None:
    async with running_chromium() as browser:
        await show_first_visit(browser)
        await show_overview_and_conversation(browser)


if __name__ == "__main__":
    asyncio.run(main())
