"""Before the first request the page says how to point a client here. It turns live by itself."""

import pytest
from playwright.async_api import Browser, expect

from tests.page.browser import OPEN, check_accessibility, looking, requires_chromium
from tests.page.material import opened, play
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.upstream import ToyUpstream

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


@pytest.mark.parametrize(
    ("keys", "more", "lines", "said"),
    [
        ("formats: [chat, responses, messages]", "", ("OPENAI", "ANTHROPIC"), "own key for 127.0.0.1:"),
        ("formats: [messages]", "", ("ANTHROPIC",), "own key for 127.0.0.1:"),
        ("formats: [responses], api_key: own", "", ("OPENAI",), "Codex, and whatever uses the Responses API"),
        ("formats: [chat], api_key: own", "", ("OPENAI",), "It needs no key of its own"),
        ("formats: [chat]", "tenants: [{name: a, keys: [k]}]\n", ("OPENAI",), "Its key is one of a tenant"),
    ],
)
async def test_it_names_the_formats_and_the_keys_of_these_settings(
    browser: Browser, keys: str, more: str, lines: tuple[str, ...], said: str
) -> None:
    async with ToyUpstream() as toy:
        settings = make_settings(toy, more=OPEN + more).replace("discover: false", f"discover: false, {keys}")
        async with (
            running_gateway(settings) as gateway,
            looking(browser, gateway.admin_port) as page,
        ):
            await expect(page.get_by_text(said).first).to_be_visible()
            for name in ("OPENAI", "ANTHROPIC"):
                count = 1 if name in lines else 0
                await expect(page.get_by_text(f"{name}_BASE_URL=")).to_have_count(count)
            is_passed_on = not more and "api_key" not in keys
            await expect(page.get_by_text("passes on")).to_have_count(len(lines) if is_passed_on else 0)


async def test_the_first_request_turns_it_into_the_overview(browser: Browser) -> None:
    async with opened(browser) as (toy, gateway, page):
        await expect(page.get_by_role("heading", name="Waiting for the first request")).to_be_visible()
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        run = await play(gateway, toy, last=1)
        await expect(page.get_by_role("heading", name="Conversations", level=1)).to_be_visible()
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=run.conversation[:8]))
        await expect(row).to_contain_text("toy-model")
