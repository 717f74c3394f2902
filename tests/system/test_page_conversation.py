"""One conversation on the page: a compaction while one looks, its summaries, compacting by hand, deletion."""

import re
from itertools import product

import pytest
from playwright.async_api import Browser, Page, expect

from tests.system.page import (
    FOLDED,
    HIDING,
    LONG,
    OPEN,
    SCHEMES,
    WINDOW,
    Look,
    check_accessibility,
    looking,
    open_newest,
    opened,
    play,
    requires_chromium,
)
from tests.toy.house import make_settings
from tests.toy.product import serve
from tests.toy.upstream import ToyUpstream

pytestmark = [requires_chromium, pytest.mark.asyncio(loop_scope="module")]

# As long as nobody asks for one.
_NO_COMPACTION = (
    "admin: {port: 0}\npolicies: {default: {show_texts: true, compaction: {auto: false, prune: false}}}\n"
)
_EDITED = "## What we did\nWe chose blue paint, says a person.\n"
_REFUSES = Look(forgiven=("422",))


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
        gone = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}"
        assert (await page.request.get(gone)).status == 404


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
        for name, words in (("Search removed messages", "are not shown here"), ("Session", "are not shown")):
            section = page.get_by_role("region", name=name, exact=True)
            await expect(section).to_contain_text(words)
            await expect(section.get_by_role("searchbox")).to_have_count(0)
        await check_accessibility(page)


async def test_the_conversation_is_accessible(browser: Browser) -> None:
    """Wide and narrow, light and dark, with everything opened, and what a search has found."""
    async with ToyUpstream(window=WINDOW) as toy, serve(make_settings(toy, more=OPEN)) as gateway:
        run = await play(gateway, toy)
        for scheme, width in product(SCHEMES, (1280, 390)):
            look = Look(path=f"#/conversations/{run.conversation}", scheme=scheme, width=width)
            async with looking(browser, gateway.admin_port, look) as page:
                await open_everything(page)
                await check_accessibility(page)
                await page.get_by_role("button", name="Delete").click()
                await expect(page.get_by_role("dialog")).to_be_visible()
                await check_accessibility(page)


async def open_everything(page: Page) -> None:
    messages = page.get_by_role("list", name="Messages, as received and as sent")
    await expect(messages).to_be_visible()
    await messages.get_by_role("button").filter(has_text=re.compile("folded|cleared")).first.click()
    await messages.get_by_role("button", name="system").first.click()
    await page.get_by_text("The same as a table").click()
    await page.get_by_role("button", name="Edit").first.click()
    await expect(page.get_by_label("Text of the summary")).to_be_focused()
    search = page.get_by_role("region", name="Search removed messages")
    await search.get_by_role("searchbox").fill(FOLDED)
    await search.get_by_role("button", name="Search").click()
    await expect(search.get_by_role("listitem").first).to_contain_text(FOLDED)


async def test_an_edited_summary_is_sent_and_an_earlier_version_restored(browser: Browser) -> None:
    async with opened(browser, _REFUSES) as (toy, gateway, page):
        await play(gateway, toy, last=25)
        await open_newest(page)
        summary = page.get_by_role("article", name="Summary of").filter(has_text="in use").first
        await summary.get_by_role("button", name="Read").click()
        made = await summary.get_by_label("Text", exact=True).inner_text()
        assert "## Constraints and preferences" in made

        await summary.get_by_role("button", name="Edit").click()
        field = summary.get_by_label("Text of the summary")
        await expect(field).to_be_focused()
        # What the checks refuse is said, and the text stays.
        await field.fill(" \n ")
        await summary.get_by_role("button", name="Save as a new version").click()
        await expect(
            summary.get_by_role("alert").filter(has_text="Not saved. The summary is empty.")
        ).to_be_visible()
        await field.fill(_EDITED)
        await summary.get_by_role("button", name="Save as a new version").click()
        await expect(summary).to_contain_text("version 2")
        await expect(summary.get_by_role("button", name="Edit")).to_be_focused()
        await play(gateway, toy, first=25, last=26)
        assert b"We chose blue paint, says a person." in toy.chats[-1].body

        await summary.get_by_role("button", name="Versions (2)").click()
        await summary.get_by_role("button", name="Read version 1").click()
        await expect(summary.get_by_label("Text", exact=True)).to_contain_text("Constraints and preferences")
        await summary.get_by_role("button", name="Restore version 1").click()
        await expect(summary).to_contain_text("version 3")
        await play(gateway, toy, first=26, last=27)
        assert b"Constraints and preferences" in toy.chats[-1].body
        assert b"We chose blue paint" not in toy.chats[-1].body
