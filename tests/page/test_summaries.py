"""A summary is read, edited, refused, and restored; the model gets what was edited."""

from playwright.async_api import Browser, expect

from tests.page.browser import Look, requires_chromium
from tests.page.material import opened, play
from tests.page.test_conversation import open_newest

pytestmark = requires_chromium

_EDITED = "## What we did\nWe chose blue paint, says a person.\n"
_REFUSES = Look(forgiven=("422",))


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
