"""Before the first request the page says how to point a client here. It turns live by itself."""

from playwright.async_api import Browser, expect

from tests.page.browser import check_accessibility, requires_chromium
from tests.page.material import opened, play

pytestmark = requires_chromium


async def test_the_two_lines_name_this_gateway_and_can_be_copied(browser: Browser) -> None:
    async with opened(browser) as (_, gateway, page):
        await expect(page.get_by_role("heading", name="Waiting for the first request")).to_be_visible()
        for name, line in (
            ("OpenAI clients", f"OPENAI_BASE_URL={gateway.base_url}"),
            ("Claude Code", f"ANTHROPIC_BASE_URL={gateway.root_url}"),
        ):
            await expect(page.get_by_text(line, exact=True)).to_be_visible()
            await page.get_by_role("button", name=f"Copy: Base URL for {name}").click()
            await expect(page.get_by_role("status").filter(has_text=f"Copied: {line}")).to_be_visible()
            assert await page.evaluate("navigator.clipboard.readText()") == line
        await check_accessibility(page)


async def test_the_first_request_turns_it_into_the_overview(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        await expect(page.get_by_role("heading", name="Waiting for the first request")).to_be_visible()
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        run = await play(gateway, toy, last=1)
        await expect(page.get_by_role("heading", name="Conversations", level=1)).to_be_visible()
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=run.conversation[:8]))
        await expect(row).to_contain_text("toy-model")
