"""What is not sent any more is searched on the page of its conversation."""

import pytest
from playwright.async_api import Browser, expect

from tests.page.browser import HIDING, OPEN, Look, Scheme, check_accessibility, looking, requires_chromium
from tests.page.material import LONG, WINDOW, opened, play
from tests.page.test_conversation import open_newest
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.upstream import ToyUpstream

pytestmark = requires_chromium

_FOLDED = next(fact.token for fact in LONG.facts if fact.turn > 0)


async def test_a_folded_message_is_found_by_its_words(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        await play(gateway, toy, last=3)
        await open_newest(page)
        section = page.get_by_role("region", name="Search removed messages")
        await expect(section.get_by_text("Nothing was removed")).to_be_visible()
        await expect(section.get_by_role("searchbox")).to_have_count(0)
        await play(gateway, toy, first=3)
        field = section.get_by_role("searchbox", name="Words, paths or identifiers")
        await field.fill(_FOLDED)
        await field.press("Enter")
        found = section.get_by_role("list", name="Pieces that were found")
        await expect(found.get_by_role("listitem").first).to_contain_text(_FOLDED)
        await expect(section.get_by_role("status")).to_contain_text("found, the best first.")
        await field.fill("zzyzx-nowhere")
        await section.get_by_role("button", name="Search").click()
        await expect(section.get_by_role("status")).to_contain_text("Nothing found")
        await expect(found).to_have_count(0)


async def test_where_texts_are_refused_nothing_can_be_searched(browser: Browser) -> None:
    async with opened(browser, more=HIDING) as (toy, gateway, page):
        await play(gateway, toy)
        await open_newest(page)
        section = page.get_by_role("region", name="Search removed messages")
        await expect(section).to_contain_text("are not shown here")
        await expect(section.get_by_role("searchbox")).to_have_count(0)


async def test_a_search_that_is_refused_says_why(browser: Browser) -> None:
    look = Look(forgiven=("403", "404"))
    async with opened(browser, look) as (toy, gateway, page):
        run = await play(gateway, toy)
        await open_newest(page)
        section = page.get_by_role("region", name="Search removed messages")
        await section.get_by_role("searchbox").fill(_FOLDED)
        # Its policy is not known any more.
        deleted = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}"
        assert (await page.request.delete(deleted)).status == 200
        await section.get_by_role("button", name="Search").click()
        await expect(section.get_by_role("alert")).to_contain_text("texts of conversations are not shown")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_what_was_found_is_accessible(browser: Browser, scheme: Scheme, width: int) -> None:
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(make_settings(toy, more=OPEN)) as gateway:
        run = await play(gateway, toy)
        look = Look(path=f"#/conversations/{run.conversation}", scheme=scheme, width=width)
        async with looking(browser, gateway.admin_port, look) as page:
            section = page.get_by_role("region", name="Search removed messages")
            await section.get_by_role("searchbox").fill(_FOLDED)
            await section.get_by_role("button", name="Search").click()
            await expect(section.get_by_role("listitem").first).to_contain_text(_FOLDED)
            await check_accessibility(page)
