"""The harness of the page's tests finds what it has to find."""

from typing import Literal

import pytest
from playwright.async_api import Browser, expect

from tests.page.browser import Look, check_accessibility, requires_chromium
from tests.page.material import opened

pytestmark = requires_chromium


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
