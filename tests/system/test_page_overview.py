"""The page before the first request, its overview, and who may look at it: the token, the keyboard alone."""

import asyncio
import json
import re
from contextlib import suppress
from itertools import product
from typing import Literal

import aiohttp
import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect
from playwright.async_api import TimeoutError as PlaywrightTimeout

from tests.system.page import (
    OPEN,
    SCHEMES,
    Look,
    check_accessibility,
    looking,
    opened,
    play,
    requires_chromium,
)
from tests.toy.house import ADMIN, ADMIN_TOKEN, make_settings
from tests.toy.product import Product, serve
from tests.toy.slow_proxy import running_proxy
from tests.toy.upstream import ToyUpstream

pytestmark = [requires_chromium, pytest.mark.asyncio(loop_scope="module")]

_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
_TO_MANY = OPEN + _TENANTS
# More than the page shows at once.
_MANY = 60
_REFUSED = Look(forgiven=("401",))
# More steps than any of these ways takes.
_MOST_STEPS = 60


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
            serve(settings) as gateway,
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


async def say(gateway: Product, text: str, *, key: str = "sk-red", model: str = "toy-model") -> str:
    """A conversation of one request; its id."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    url = f"{gateway.base_url}/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=headers) as response:
        assert response.status == 200, await response.read()
        return response.headers["x-gateway-conversation"]


def rows_of(page: Page) -> Locator:
    """Without the head."""
    table = page.get_by_role("table", name="Conversations")
    return table.get_by_role("row").filter(has=page.get_by_role("rowheader"))


async def test_a_row_shows_the_window_the_savings_and_the_costs_and_changes_as_requests_come(
    browser: Browser,
) -> None:
    price = "{input: 1000, output: 1000}"
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, price=price, more=OPEN)) as gateway,
    ):
        run = await play(gateway, toy, last=10)
        async with looking(browser, gateway.admin_port) as page:
            row = rows_of(page)
            await expect(row).to_have_count(1)
            window = row.get_by_role("img", name="of a window of 16,000")
            await expect(window).to_be_visible()
            before = await window.get_attribute("aria-label")
            await expect(row.get_by_role("cell", name="0", exact=True)).to_have_count(2)
            await play(gateway, toy, first=10)
            await expect(window).not_to_have_attribute("aria-label", str(before))
            # Compactions, and what they saved and cost.
            await expect(row.get_by_role("cell").nth(2)).to_have_text(re.compile("[1-9]"))
            await expect(row.get_by_role("cell").nth(3)).to_contain_text("$")
            await expect(row.get_by_role("cell").nth(4)).to_contain_text("tokens")
            await expect(row.get_by_role("link")).to_have_text(run.conversation[:8])


async def test_the_server_searches_and_filters_and_the_address_keeps_it(browser: Browser) -> None:
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_TO_MANY)) as gateway:
        red = await say(gateway, "one")
        blue = await say(gateway, "two", key="sk-blue", model="toy-other")
        async with looking(browser, gateway.admin_port) as page:
            await expect(rows_of(page)).to_have_count(2)
            await page.get_by_role("combobox", name="Tenant").select_option("blue")
            await expect(rows_of(page)).to_have_count(1)
            await expect(rows_of(page)).to_contain_text(blue[:8])
            await page.reload()
            await expect(page.get_by_role("combobox", name="Tenant")).to_have_value("blue")
            await expect(rows_of(page)).to_have_count(1)
            await page.get_by_role("button", name="Clear").click()
            await expect(rows_of(page)).to_have_count(2)
            await page.get_by_role("searchbox", name="Search").fill(red[:10])
            await expect(rows_of(page)).to_have_count(1)
            await expect(rows_of(page)).to_contain_text(red[:8])
            await page.get_by_role("searchbox", name="Search").fill("no such thing")
            await expect(page.get_by_text("No conversation matches these filters.")).to_be_visible()
            # A new conversation that the filters leave out does not come in.
            await say(gateway, "three")
            await expect(page.get_by_role("definition").first).to_contain_text("3")
            await expect(page.get_by_text("No conversation matches these filters.")).to_be_visible()


async def test_more_rows_are_loaded_on_demand_and_new_ones_come_in_at_the_top(browser: Browser) -> None:
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_TO_MANY)) as gateway:
        for start in range(0, _MANY, 10):
            await asyncio.gather(*(say(gateway, f"question {start + n}") for n in range(10)))
        async with looking(browser, gateway.admin_port) as page:
            await expect(rows_of(page)).to_have_count(50)
            await page.get_by_role("button", name="Show more conversations").click()
            await expect(rows_of(page)).to_have_count(_MANY)
            await expect(page.get_by_role("button", name="Show more conversations")).to_have_count(0)
            newest = await say(gateway, "the newest")
            await expect(rows_of(page)).to_have_count(_MANY + 1)
            await expect(rows_of(page).first).to_contain_text(newest[:8])


async def test_totals_stand_for_each_tenant(browser: Browser) -> None:
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_TO_MANY)) as gateway:
        await say(gateway, "one")
        await say(gateway, "two")
        await say(gateway, "three", key="sk-blue", model="toy-2")
        async with looking(browser, gateway.admin_port) as page:
            await page.get_by_text("Totals per tenant (2)").click()
            table = page.get_by_role("region", name="Totals per tenant")
            await expect(table.get_by_role("row", name="red")).to_contain_text("2")
            await expect(table.get_by_role("row", name="blue")).to_contain_text("1")
            await page.get_by_text("Totals per model (2)").click()
            table = page.get_by_role("region", name="Totals per model")
            await expect(table.get_by_role("row", name="toy-2")).to_contain_text("1")


async def test_a_lost_connection_is_said_and_found_again(browser: Browser) -> None:
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_TO_MANY)) as gateway:
        await say(gateway, "one")
        lost = Look(forgiven=("net::ERR_",))
        async with running_proxy(gateway.admin_port) as proxy, looking(browser, proxy.port, lost) as page:
            await expect(page.get_by_text("Live", exact=True)).to_be_visible()
            await proxy.refuse()
            banner = page.get_by_role("alert").filter(has_text="The connection to the gateway is lost.")
            await expect(banner).to_be_visible()
            await expect(page.get_by_text("Not connected")).to_be_visible()
            await check_accessibility(page)
            await proxy.start()
            await say(gateway, "two")
            # Unless the page has tried by itself at this moment.
            with suppress(PlaywrightTimeout):
                await page.get_by_role("button", name="Try now").click(timeout=5_000)
            await expect(page.get_by_text("Live", exact=True)).to_be_visible()
            await expect(banner).to_have_count(0)
            await expect(rows_of(page)).to_have_count(2)


async def test_what_happens_before_the_page_is_live_is_shown(browser: Browser) -> None:
    """Another page that is live already gets the events of it."""
    async with (
        opened(browser) as (_, gateway, live),
        looking(browser, gateway.admin_port) as page,
    ):
        released = asyncio.Event()

        async def hold(route: Route) -> None:
            await released.wait()
            await route.continue_()

        await page.route("**/events", hold)
        await page.reload()
        await expect(page.get_by_role("heading", name="Waiting for the first request")).to_be_visible()
        await expect(page.get_by_text("Connecting")).to_be_visible()
        await say(gateway, "one")
        await expect(rows_of(live)).to_have_count(1)
        released.set()
        await expect(rows_of(page)).to_have_count(1)


async def test_the_overview_is_accessible(browser: Browser) -> None:
    async with ToyUpstream() as toy, serve(make_settings(toy, more=_TO_MANY)) as gateway:
        await say(gateway, "one")
        await say(gateway, "two", key="sk-blue", model="toy-" + "long-name-of-a-model-" * 6)
        for scheme, width in product(SCHEMES, (1280, 390)):
            async with looking(browser, gateway.admin_port, Look(scheme=scheme, width=width)) as page:
                await expect(rows_of(page)).to_have_count(2)
                await page.get_by_text("Totals per tenant (2)").click()
                await page.get_by_text("Totals per model (2)").click()
                await check_accessibility(page)


async def test_the_token_is_asked_for_and_kept_until_the_tab_is_closed(browser: Browser) -> None:
    async with opened(browser, _REFUSED, ADMIN) as (toy, gateway, page):
        await play(gateway, toy, last=1)
        field = page.get_by_label("Admin token")
        await expect(field).to_be_focused()
        await check_accessibility(page)
        await field.fill("wrong")
        await page.get_by_role("button", name="Continue").click()
        await expect(page.get_by_text("The gateway does not accept this token.")).to_be_visible()
        await field.fill(ADMIN_TOKEN)
        await field.press("Enter")
        await expect(page.get_by_role("heading", name="Conversations", level=1)).to_be_visible()
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("heading", name="Conversations", level=1)).to_be_visible()
        # It is nowhere that outlives the tab.
        assert await page.evaluate("localStorage.length") == 0
        assert await page.context.cookies() == []
        assert ADMIN_TOKEN not in page.url


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


@pytest.mark.parametrize(
    "harm",
    [
        "console.error('broken')",
        "setTimeout(() => { throw new Error('broken') })",
        "document.head.append(Object.assign(document.createElement('style'), {textContent: 'p {}'}))",
        "document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))",
    ],
)
async def test_an_error_or_a_violation_of_the_policy_fails_the_look(browser: Browser, harm: str) -> None:
    sign: Literal["console", "pageerror"] = "pageerror" if "throw" in harm else "console"
    with pytest.raises(AssertionError):
        async with opened(browser) as (_, _, page), page.expect_event(sign):
            await page.evaluate(f"() => {{ {harm} }}")


async def test_an_inaccessible_page_is_found(browser: Browser) -> None:
    async with opened(browser, Look(width=390)) as (_, _, page):
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await page.evaluate("document.querySelector('main').append(document.createElement('button'))")
        with pytest.raises(AssertionError, match="button-name"):
            await check_accessibility(page)
