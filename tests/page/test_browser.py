"""The harness of the page's tests finds what it has to find."""

import pytest
from playwright.async_api import Browser, expect

from tests.page.browser import OPEN, Look, check_accessibility, looking, requires_chromium
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.upstream import ToyUpstream

pytestmark = requires_chromium


@pytest.mark.parametrize(
    "harm",
    [
        "console.error('broken')",
        "setTimeout(() => { throw new Error('broken') })",
        "document.head.append(Object.assign(document.createElement('style'), {textContent: 'p {color: red}'}))",
        "document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))",
    ],
)
async def test_an_error_or_a_violation_of_the_policy_fails_the_look(browser: Browser, harm: str) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=OPEN)) as gateway:
        with pytest.raises(AssertionError):
            async with looking(browser, gateway.admin_port) as page:
                await expect(page.get_by_role("heading", level=1)).to_be_visible()
                async with page.expect_event("console" if "setTimeout" not in harm else "pageerror"):
                    await page.evaluate(f"() => {{ {harm} }}")


async def test_an_inaccessible_page_is_found(browser: Browser) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=OPEN)) as gateway:
        async with looking(browser, gateway.admin_port, Look(width=390)) as page:
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            await page.evaluate("document.querySelector('main').append(document.createElement('button'))")
            with pytest.raises(AssertionError, match="button-name"):
                await check_accessibility(page)
