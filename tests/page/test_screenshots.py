"""The pictures of README and docs/page.md, made anew by `make screenshots`."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.page.browser import Look, looking, requires_chromium
from tests.page.material import opened
from tests.toy.agent import Session, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Request
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.reply import Reply
from tests.toy.running import Pace, run_session
from tests.toy.summarising import make_summary
from tests.toy.upstream import ToyUpstream

pytestmark = [
    requires_chromium,
    pytest.mark.skipif("SCREENSHOTS" not in os.environ, reason="pictures are made by `make screenshots`"),
]

_MOST_BYTES = 150_000
_PRICE = "{input: 2.5, cached: 0.25, output: 10}"
_SETTINGS = """
admin: {port: 0}
policies: {default: {show_texts: true}}
tenants:
  - {name: payments, keys: [sk-payments]}
  - {name: research, keys: [sk-research]}
"""
_WINDOW = 16_000
_CACHED_SHARE = 0.9


def summarize(toy: ToyUpstream, request: Request) -> Reply:
    """A call that rides finds most of its prompt in the cache, as the conversation does."""
    cached_tokens = int(_CACHED_SHARE * CHAT.count(toy.counter, request)) if request.get("tools") else 0
    return replace(make_summary(request, toy.counter, None), cached_tokens=cached_tokens)


async def save(page: Page, name: str) -> None:
    path = Path(os.environ["SCREENSHOTS"]) / f"{name}.png"
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


async def work(gateway: RunningGateway, toy: ToyUpstream, session: Session, tenant: str, label: str) -> str:
    pace = Pace(key=f"sk-{tenant}", headers={"x-session-id": label})
    run = await run_session(session, gateway.base_url, toy, pace=pace)
    assert run.failed == []
    await gateway.settle()
    return run.conversation


async def test_the_first_visit(browser: Browser) -> None:
    async with opened(browser, Look(height=620)) as (_, _, page):
        await expect(page.get_by_role("heading", name="Waiting for the first request")).to_be_visible()
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        await save(page, "first-visit")


async def test_overview_and_conversation(browser: Browser) -> None:
    sessions = (
        ("research", "survey-of-retries", make_session(8, 5)),
        ("payments", "fix-flaky-tests", make_session(16, 6)),
        ("research", "compare-indexes", make_session(34, 7, "many_users")),
        ("payments", "upgrade-client", make_session(3, 8)),
        ("payments", "port-storage-layer", make_session(60, 3)),
    )
    async with (
        ToyUpstream(window=_WINDOW) as toy,
        running_gateway(make_settings(toy, price=_PRICE, more=_SETTINGS)) as gateway,
    ):
        toy.cached_share = lambda _: _CACHED_SHARE
        toy.summary = lambda request: summarize(toy, request)
        for tenant, label, session in sessions:
            newest = await work(gateway, toy, session, tenant, label)
        one = f"#/conversations/{newest}"
        for name, look in (
            ("overview", Look(height=700)),
            ("overview-narrow", Look(width=390, height=844)),
            ("conversation", Look(path=one, height=1000)),
            ("conversation-dark", Look(path=one, height=1000, scheme="dark")),
            ("messages", Look(path=one, height=700)),
        ):
            async with looking(browser, gateway.admin_port, look) as page:
                await settle(page, name)
                await save(page, name)
