"""What a session worked on: its title in the list, its files with their diffs, to-dos and commands."""

from typing import Final

from playwright.async_api import Browser, expect

from tests.builders.sessions import ask, call
from tests.page.browser import HIDING, Look, check_accessibility, requires_chromium
from tests.page.material import opened
from tests.page.test_modules import call as call_module
from tests.toy.sessions import SESSION, TASK, play

pytestmark = requires_chromium

_TODOS: Final = {
    "todos": [
        {"content": "Write a test", "status": "in_progress", "priority": "high", "id": "1"},
        {"content": "Fix it", "status": "completed", "priority": "high", "id": "2"},
    ]
}
_HOSTILE: Final = "<img src=x onerror=alert(1)> \u202e and more"
_WHOLE: Final = [*SESSION, *call(7, "todowrite", _TODOS, "ok"), ask(_HOSTILE)]


async def test_the_work_of_a_session_is_shown_with_its_diffs(browser: Browser) -> None:
    for scheme in ("light", "dark"):
        look = Look(scheme="dark") if scheme == "dark" else Look()
        async with opened(browser, look) as (_, gateway, page):
            await play(gateway, _WHOLE)
            await page.reload()
            table = page.get_by_role("table", name="Conversations")
            await expect(table.get_by_text(TASK)).to_be_visible()
            await table.get_by_role("rowheader").first.get_by_role("link").first.click()
            section = page.get_by_role("region", name="Session", exact=True)
            await expect(section).to_contain_text("2 files")
            files = section.get_by_role("list", name="Files").get_by_role("listitem")
            await expect(files).to_have_count(2)
            await expect(files.first).to_contain_text("/a.py")
            await files.first.locator("summary").click()
            diff = section.get_by_role("region", name="Diff of /a.py")
            await expect(diff.locator(".added").first).to_have_text("+two")
            await expect(diff.locator(".removed").first).to_have_text("-one")
            await expect(section.get_by_text("Write a test")).to_be_visible()
            await expect(section.get_by_text("Fix it")).to_have_count(0)
            await expect(section.get_by_role("list", name="Commands")).to_contain_text("make test")
            await section.get_by_text("What the user asked").click()
            await expect(section.get_by_text(_HOSTILE)).to_be_visible()
            await check_accessibility(page)


async def test_a_session_without_work_says_so_and_newer_work_is_found(browser: Browser) -> None:
    async with opened(browser, Look(width=400)) as (_, gateway, page):
        await play(gateway, SESSION[:1])
        await page.reload()
        await page.get_by_role("table", name="Conversations").get_by_role("link").first.click()
        section = page.get_by_role("region", name="Session", exact=True)
        await expect(section).to_contain_text("No files were changed")
        await play(gateway, SESSION, first=1)
        await page.reload()
        await expect(section).to_contain_text("2 files")
        await check_accessibility(page)


async def test_what_may_not_be_read_is_not_asked_for(browser: Browser) -> None:
    async with opened(browser, more=HIDING) as (_, gateway, page):
        await play(gateway, SESSION)
        await page.reload()
        table = page.get_by_role("table", name="Conversations")
        await expect(table.get_by_text(TASK)).to_have_count(0)
        await table.get_by_role("link").first.click()
        section = page.get_by_role("region", name="Session", exact=True)
        await expect(section).to_contain_text("are not shown")


async def test_lines_of_a_diff_are_told_apart(browser: Browser) -> None:
    async with opened(browser) as (_, _, page):
        text = r"`--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n c\n\n--- d\n${'e'.repeat(3000)}\n`"
        lines = await call_module(page, "diffs.js", f"m.readLines({text})")
        rows = await call_module(
            page, "rows.js", "m.mergeRows([{id: 1, title: 'x'}, {id: 2}], [{id: 1, title: null, n: 2}]).rows"
        )
    kinds = ["place", "place", "place", "removed", "added", "same", "same", "removed", "same"]
    assert [line["kind"] for line in lines] == kinds
    assert len(lines[-1]["text"]) == 2_001
    assert rows == [{"id": 1, "title": "x", "n": 2}, {"id": 2}]
