"""The overview: live rows, filters by the server, more rows on demand, totals, a lost connection."""

import asyncio
import json
import re
from contextlib import suppress

import aiohttp
import pytest
from playwright.async_api import Browser, Locator, Page, expect
from playwright.async_api import TimeoutError as PlaywrightTimeout

from tests.page.browser import OPEN, Look, Scheme, check_accessibility, looking, requires_chromium
from tests.page.material import play
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.slow_proxy import running_proxy
from tests.toy.upstream import ToyUpstream

pytestmark = requires_chromium

_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
_TO_MANY = OPEN + _TENANTS
# More than the page shows at once.
_MANY = 60


async def say(gateway: RunningGateway, text: str, *, key: str = "sk-red", model: str = "toy-model") -> str:
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
        running_gateway(make_settings(toy, price=price, more=OPEN)) as gateway,
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
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_TO_MANY)) as gateway:
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
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_TO_MANY)) as gateway:
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
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_TO_MANY)) as gateway:
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
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_TO_MANY)) as gateway:
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_the_overview_is_accessible(browser: Browser, scheme: Scheme, width: int) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_TO_MANY)) as gateway:
        await say(gateway, "one")
        await say(gateway, "two", key="sk-blue", model="toy-" + "long-name-of-a-model-" * 6)
        async with looking(browser, gateway.admin_port, Look(scheme=scheme, width=width)) as page:
            await expect(rows_of(page)).to_have_count(2)
            await page.get_by_text("Totals per tenant (2)").click()
            await page.get_by_text("Totals per model (2)").click()
            await check_accessibility(page)
