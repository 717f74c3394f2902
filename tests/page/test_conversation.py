"""One conversation: a compaction while one looks, the chart and its table, compacting by hand, deletion."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from tests.page.browser import (
    HIDING,
    OPEN,
    Look,
    Scheme,
    check_accessibility,
    looking,
    requires_chromium,
)
from tests.page.material import LONG, WINDOW, opened, play
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.upstream import ToyUpstream

pytestmark = requires_chromium

# As long as nobody asks for one.
_NO_COMPACTION = (
    "admin: {port: 0}\npolicies: {default: {show_texts: true, compaction: {auto: false, prune: false}}}\n"
)


async def open_newest(page: Page) -> None:
    """The newest conversation of the overview."""
    table = page.get_by_role("table", name="Conversations")
    await table.get_by_role("rowheader").first.get_by_role("link").first.click()
    await expect(page.get_by_role("heading", name="Tokens per request")).to_be_visible()


async def test_a_session_compacts_while_one_looks(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        await play(gateway, toy, last=10)
        await open_newest(page)
        chart = page.get_by_role("img", name="Chart of 10 requests")
        await expect(chart).to_be_visible()
        await expect(page.get_by_text("None so far.")).to_be_visible()
        await play(gateway, toy, first=10)
        # Nothing is reloaded by hand: numbers, chart, summaries and the log follow.
        await expect(page.get_by_role("img", name=f"Chart of {len(LONG)} requests")).to_be_visible()
        await expect(page.get_by_role("img", name="Marked:")).to_be_visible()
        await expect(page.get_by_role("article", name="Summary of").first).to_contain_text("in use")
        log = page.get_by_role("region", name="Compaction log")
        await expect(log.get_by_role("row", name="summary").first).to_be_visible()
        await page.get_by_text("The same as a table").click()
        table = page.get_by_role("region", name="Requests", exact=True)
        await expect(table.get_by_role("row")).to_have_count(len(LONG) + 1)
        await expect(table.get_by_role("cell", name="Compaction").first).to_be_visible()


async def test_compact_now_takes_instructions_and_says_what_becomes_of_it(browser: Browser) -> None:
    async with opened(browser, more=_NO_COMPACTION) as (toy, gateway, page):
        await play(gateway, toy, last=12)
        await open_newest(page)
        await page.get_by_role("button", name="Compact now").click()
        dialog = page.get_by_role("dialog", name="Compact now")
        await dialog.get_by_label("Instructions").fill("Keep the ticket numbers.")
        await dialog.get_by_role("button", name="Compact", exact=True).click()
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_role("article", name="Summary of")).to_contain_text("asked for by hand")
        assert b"Keep the ticket numbers." in toy.summaries[0].body


async def test_a_compaction_that_fails_says_so(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        await play(gateway, toy, last=1)
        await open_newest(page)
        await page.get_by_role("button", name="Compact now").click()
        await page.get_by_role("dialog").get_by_role("button", name="Compact", exact=True).click()
        status = page.get_by_role("status").filter(has_text="The compaction failed: nothing to fold.")
        await expect(status).to_be_visible()


async def test_a_conversation_is_deleted_after_a_question(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        run = await play(gateway, toy, last=3)
        await open_newest(page)
        await page.get_by_role("button", name="Delete").click()
        dialog = page.get_by_role("dialog", name="Delete this conversation?")
        # What changes nothing has the focus, and Escape changes nothing either.
        await expect(dialog.get_by_role("button", name="Keep it")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_role("button", name="Delete")).to_be_focused()
        await page.get_by_role("button", name="Delete").click()
        await dialog.get_by_role("button", name="Delete conversation").click()
        await expect(page.get_by_role("status").filter(has_text="is deleted")).to_be_visible()
        await expect(page.get_by_role("heading", name="Waiting for the first request")).to_be_visible()
        assert gateway.parts.foundation.activity.find(run.conversation) is None


async def test_an_unknown_conversation_leads_back_to_the_overview(browser: Browser) -> None:
    gone = Look(path="#/conversations/0123456789abcdef", forgiven=("404",))
    async with opened(browser, gone) as (_, _, page):
        await expect(page.get_by_text("The gateway does not know this conversation.")).to_be_visible()
        await page.get_by_role("link", name="All conversations").click()
        await expect(page.get_by_role("heading", name="Waiting for the first request")).to_be_visible()


async def test_without_a_token_or_a_policy_that_shows_them_texts_are_refused_and_numbers_shown(
    browser: Browser,
) -> None:
    async with opened(browser, more=HIDING) as (toy, gateway, page):
        await play(gateway, toy)
        await open_newest(page)
        notices = page.get_by_text("Texts of this conversation are not shown.")
        await expect(notices).to_have_count(2)
        for setting in ("admin.token", "show_texts: true"):
            await expect(page.get_by_role("code").filter(has_text=setting).first).to_be_visible()
        await expect(page.get_by_role("article", name="Summary of").first).to_contain_text("in use")
        await expect(page.get_by_role("button", name="Read")).to_have_count(0)
        await check_accessibility(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_the_conversation_is_accessible(browser: Browser, scheme: Scheme, width: int) -> None:
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(make_settings(toy, more=OPEN)) as gateway:
        run = await play(gateway, toy)
        look = Look(path=f"#/conversations/{run.conversation}", scheme=scheme, width=width)
        async with looking(browser, gateway.admin_port, look) as page:
            messages = page.get_by_role("list", name="Messages, as received and as sent")
            await expect(messages).to_be_visible()
            await messages.get_by_role("button").filter(has_text=re.compile("folded|cleared")).first.click()
            await messages.get_by_role("button", name="system").first.click()
            await page.get_by_text("The same as a table").click()
            await page.get_by_role("button", name="Edit").first.click()
            await expect(page.get_by_label("Text of the summary")).to_be_focused()
            await check_accessibility(page)
            await page.get_by_role("button", name="Delete").click()
            await expect(page.get_by_role("dialog")).to_be_visible()
            await check_accessibility(page)
