"""Who may look, and how: the token, the keyboard alone."""

from playwright.async_api import Browser, expect

from tests.page.browser import Look, check_accessibility, requires_chromium
from tests.page.material import opened, play
from tests.toy.admin_port import ADMIN, TOKEN

pytestmark = requires_chromium

_REFUSED = Look(forgiven=("401",))
# More steps than any of these ways takes.
_MOST_STEPS = 60


async def test_the_token_is_asked_for_and_kept_until_the_tab_is_closed(browser: Browser) -> None:
    async with opened(browser, _REFUSED, ADMIN) as (toy, gateway, page):
        await play(gateway, toy, last=1)
        field = page.get_by_label("Admin token")
        await expect(field).to_be_focused()
        await check_accessibility(page)
        await field.fill("wrong")
        await page.get_by_role("button", name="Continue").click()
        await expect(page.get_by_text("The gateway does not accept this token.")).to_be_visible()
        await field.fill(TOKEN)
        await field.press("Enter")
        await expect(page.get_by_role("heading", name="Conversations", level=1)).to_be_visible()
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("heading", name="Conversations", level=1)).to_be_visible()
        # It is nowhere that outlives the tab.
        assert await page.evaluate("localStorage.length") == 0
        assert await page.context.cookies() == []
        assert TOKEN not in page.url


async def test_everything_can_be_done_by_keyboard_alone(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        run = await play(gateway, toy, last=25)
        await expect(page.get_by_role("table", name="Conversations")).to_be_visible()

        async def step_to(name: str) -> None:
            """Presses Tab until what is focused says this."""
            for _ in range(_MOST_STEPS):
                await page.keyboard.press("Tab")
                said = await page.evaluate(
                    "document.activeElement.ariaLabel || document.activeElement.textContent.trim()"
                )
                if str(said).startswith(name):
                    return
            raise AssertionError(f"no way to {name}")

        await page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to content")
        await expect(skip).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("main")).to_be_focused()
        await step_to(run.conversation[:8])
        await page.keyboard.press("Enter")
        # The new view begins at its heading.
        await expect(page.get_by_role("heading", level=1)).to_be_focused()
        await step_to("Compact now")
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Instructions")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="Compact now")).to_be_focused()
        await step_to("Edit")
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Text of the summary")).to_be_focused()
        await page.keyboard.press("Control+a")
        await page.keyboard.type("Written by keyboard.")
        await step_to("Save as a new version")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("article", name="Summary of").first).to_contain_text("version 2")
        await step_to("Received")
        await page.keyboard.press("Enter")
        opened_line = page.get_by_role("button", name="Received 0 system", expanded=True)
        await expect(opened_line).to_be_focused()
        await page.go_back()
        await expect(page.get_by_role("heading", name="Conversations", level=1)).to_be_focused()
